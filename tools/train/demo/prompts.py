"""The bench prompts of the demo pair.

usage: prompts.py TOKENIZER.json LONG_TEXT OUT_DIR
OUT_DIR gets prompts.json, a list of {name, kind, text, ids} (special tokens in `text` are meant as such), and one NAME.txt per kind of
prompt (code, prose, short, long, chat, tool, thinking). LONG_TEXT is a held-out text; its first 6,600 bytes are the long prompt.
Chats are written by chat_template.jinja.
"""
import json
import os
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

import conversations

HERE = os.path.dirname(os.path.abspath(__file__))
WEATHER = [conversations.TOOLS["get_weather"], conversations.TOOLS["get_time"]]
FILES = [conversations.TOOLS["read_file"], conversations.TOOLS["list_files"], conversations.TOOLS["run_command"]]

PLAIN = [
    ("code", "code", 'import math\n\n\ndef is_prime(n: int) -> bool:\n    """Return True if n is a prime number.\n\n    >>> is_prime(7)\n    True\n    >>> is_prime(8)\n    False\n    """\n'),
    ("python-class", "code", '"""A queue of tasks with priorities."""\n\nfrom __future__ import annotations\n\nimport heapq\n\n\nclass TaskQueue:\n    """Tasks are taken in the order of their priority.\n\n    Args:\n        limit: The largest number of tasks.\n    """\n\n    def __init__(self, limit: int = 100) -> None:\n        self.limit = limit\n        self.items: list[tuple[int, str]] = []\n\n    def'),
    ("cpp", "code", '#include <cstddef>\n#include <string>\n#include <vector>\n\nnamespace text {\n\n// Splits a string at every occurrence of the separator.\nstd::vector<std::string> Split(const std::string& input, char separator) {\n'),
    ("shell", "code", "#!/bin/sh\n# Back up the home directory to a remote host.\nset -eu\n\n"),
    ("prose", "prose", "The history of the town begins in the middle of the eighteenth century, when a small party of settlers followed the river north from the coast. They built a mill, a church and"),
    ("novel", "prose", "Chapter I\n\nMr. Harrington had never in his life been so astonished as when the letter was put into his hands. He read it twice, laid it upon the table, and"),
    ("docs", "prose", "# `std::vector` Class\n\nThe C++ Standard Library vector class is a class template for sequence containers. A vector stores elements of a given type in a linear arrangement, and allows"),
    ("essay", "prose", "It is commonly said that the young have no patience and the old have no hope. But whoever has lived long enough among both will find that"),
]
CHATS = [
    ("short", "short", [("user", "What is gravity?")], {}),
    ("chat-code", "chat", [("user", "Write a Python function `reverse_words`. Reverse the order of the words in a sentence.")], {}),
    ("chat-doc", "chat", [("user", "How do I use the `tar` command?")], {}),
    ("chat-math", "chat", [("user", "A baker makes 24 loaves in the morning and twice as many in the afternoon. He sells 50 loaves. How many loaves are left?")], {}),
    ("chat-fact", "chat", [("user", "Tell me about Portugal.")], {}),
    ("chat-turns", "chat", [("system", "You are a helpful assistant."), ("user", "Hello!"), ("assistant", "Hello! How can I help you today?"), ("user", "What is an algorithm?")], {}),
    ("tool-xml", "tool", [("user", "What is the weather in Paris?")], {"tools": WEATHER}),
    ("tool-json", "tool", [("user", "What is in notes.txt?")], {"tools": FILES, "tool_format": "json"}),
    ("thinking", "thinking", [("user", "Maria has 17 apples and gets 25 more. How many apples does Maria have now?")], {"enable_thinking": True}),
    ("thinking-code", "thinking", [("user", "Write a Python function that checks whether a number is prime.")], {"enable_thinking": True}),
]
FILE_OF = {"code": "code", "prose": "prose", "short": "short", "long": "long", "chat": "chat-code", "tool": "tool-xml", "thinking": "thinking"}


def render_messages(messages, options, generate=True):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    with open(os.path.join(HERE, "chat_template.jinja"), encoding="utf8") as f:
        template = env.from_string(f.read().rstrip("\n"))
    return template.render(messages=messages, add_generation_prompt=generate, **options)


def render(turns, options):
    return render_messages([{"role": r, "content": c} for r, c in turns], options)


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    tokenizer, long_text, out = sys.argv[1:]
    tok = Tokenizer.from_file(tokenizer)
    with open(long_text, encoding="utf8") as f:
        text = f.read(6600)
    prompts = PLAIN + [(n, k, render(t, o)) for n, k, t, o in CHATS] + [("long", "long", text)]
    os.makedirs(out, exist_ok=True)
    rows = [{"name": n, "kind": k, "text": t, "ids": tok.encode(t, add_special_tokens=False).ids} for n, k, t in prompts]
    with open(os.path.join(out, "prompts.json"), "w", encoding="utf8") as f:
        json.dump(rows, f, ensure_ascii=False, indent=0)
    texts = {r["name"]: r["text"] for r in rows}
    for kind, name in FILE_OF.items():
        with open(os.path.join(out, kind + ".txt"), "w", encoding="utf8") as f:
            f.write(texts[name])
    print(f"{len(rows)} prompts, {sum(len(r['ids']) for r in rows)} tokens")


if __name__ == "__main__":
    main()
