#!/usr/bin/env python3
"""Renders the conversations of tests/golden/conversations.json with every template of tests/golden/templates by Python's
jinja2 (3.1), in the way of Hugging Face transformers, and writes tests/golden/chat_templates.json.xz.

usage: python3 tools/goldens/chat_templates.py            (from the root of the repository; needs `pip install jinja2==3.1.6`)

The sandbox is the mutable one, because two templates append to lists. Messages are shaped as OpenAI clients send them;
where a template wants another shape (arguments as text, "" for a missing content, text parts joined, system messages
merged, an empty list for no tools, no developer role), it gets the first one that it renders in full."""

import copy
import datetime
import itertools
import json
import lzma
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
NOW = datetime.datetime(2025, 3, 9, 7, 5, 2)  # also in tests/chat_template_test.cpp


class Generation(jinja2.ext.Extension):
    """{% generation %}: a scope that renders its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = jinja2.sandbox.SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def merged(messages, target):
    """System messages as one: the first message, or the beginning of the first user message."""
    text = "\n\n".join(m["content"] for m in messages if m["role"] == "system" and m["content"])
    others = [m for m in messages if m["role"] != "system"]
    if len(others) == len(messages):
        return messages
    if target == "system":
        return [{"role": "system", "content": text}] + others
    for message in others:
        if message["role"] == "user":
            message["content"] = "\n\n".join(part for part in (text, message["content"]) if part)
            return others
    return [{"role": "user", "content": text}] + others


def shaped(conversation, knows, object_arguments, empty_content, joined, system):
    messages = copy.deepcopy(conversation["messages"])
    for message in messages:
        if message["role"] == "developer" and not knows["developer"]:
            message["role"] = "system"
        for call in message.get("tool_calls", []):
            if object_arguments:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        if message.get("content") is None:
            message["content"] = "" if empty_content or not message.get("tool_calls") else None
        if joined and isinstance(message["content"], list):
            message["content"] = "\n".join(part["text"] for part in message["content"])
    return messages if system == "as it is" else merged(messages, system)


def roles(template, source):
    """Which of the roles system and developer a template renders."""
    knows = {}
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "needle"}, {"role": "user", "content": "question"}]
        try:
            prompt = template.render(messages=messages, tools=[], add_generation_prompt=True)
            knows[role] = role in source and "needle" in prompt
        except Exception:
            knows[role] = False
    return knows


def render(template, source, conversation):
    """The prompt of the first shape that shows all that the conversation must show, else what the last shape gives."""
    variables = {
        "bos_token": "<BOS>",
        "eos_token": "<EOS>",
        "documents": None,
        **conversation.get("kwargs", {}),
        "add_generation_prompt": conversation.get("add_generation_prompt", True),
    }
    rendered, error = [], None
    knows = roles(template, source)
    none = source.count("None") + conversation.get("none", 0)
    for tools, system, *shape in itertools.product(
        (None, []), ("as it is", "system", "user"), (True, False), (False, True), (False, True)
    ):
        if system == "user" and knows["system"]:
            continue
        variables["tools"] = conversation.get("tools", tools)
        try:
            prompt = template.render(messages=shaped(conversation, knows, *shape, system), **variables)
        except Exception as e:  # whatever a template stumbles over
            error = {"error": str(e), "raised": type(e) is jinja2.exceptions.TemplateError}
            continue
        if prompt.count("None") <= none and "'text'" not in prompt and '"text"' not in prompt:
            rendered.append({"prompt": prompt})
            if all(part in prompt for part in conversation.get("must", [])):
                return rendered[-1]
    return rendered[0] if rendered else error


def main():
    conversations = json.loads((ROOT / "conversations.json").read_text())
    goldens = {}
    for path in sorted((ROOT / "templates").glob("*.jinja")):
        source = path.read_text()
        template = environment().from_string(source)
        goldens[path.stem] = {name: render(template, source, c) for name, c in conversations.items()}
    text = json.dumps(goldens, ensure_ascii=False, indent=0, separators=(",", ":"))
    (ROOT / "chat_templates.json.xz").write_bytes(lzma.compress((text + "\n").encode(), preset=9 | lzma.PRESET_EXTREME))
    errors = sum("error" in g for t in goldens.values() for g in t.values())
    print(f"{len(goldens)} templates, {len(conversations)} conversations, {errors} errors, {len(text.encode())} bytes")


if __name__ == "__main__":
    main()
