"""Prompts go on from what was evaluated before: turns of a chat, edited messages, shared system prompts, saved slots."""
import json
import pathlib
import threading

import pytest
from serving import text_of, user

SYSTEM = {"role": "system", "content": "You answer in one short sentence. " + " ".join(
    "Rule %d: be kind, be brief, and never mention rule %d." % (i, i + 1) for i in range(12))}
MESSAGES = ["Tell me about the %s." % word for word in (
    "river sea lake hill wood road town farm ship moon star rain snow wind fire bread cheese apple garden piano").split()]


def ask(server, messages, **fields):
    body = {"messages": messages, "max_tokens": 24, "temperature": 0, **fields}
    return server.post("/v1/chat/completions", body)


def cached(reply):
    n = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert n == reply["timings"]["cache_n"] and n + reply["timings"]["prompt_n"] == reply["usage"]["prompt_tokens"]
    return n


def text(reply):
    return reply["choices"][0]["message"]["content"]


def metric(server, name):
    line = [line for line in server.request("GET", "/metrics")[2].splitlines() if line.startswith(name + " ")][0]
    return float(line.split()[1])


@pytest.fixture(scope="module")
def own_server(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("slots")
    server = start("--parallel", "2", "--ctx-size", "4096", "--slot-save-path", str(folder))
    server.folder = folder
    return server


def test_twenty_turns(own_server):
    """From the second turn on at least 97 % of the earlier prompt is there; also after the last message was edited."""
    server = own_server
    messages = [SYSTEM]
    before = 0
    for turn, message in enumerate(MESSAGES):
        messages.append({"role": "user", "content": message})
        reply = ask(server, messages)
        if turn > 0:
            assert cached(reply) >= 0.97 * before, "turn %d: %d of %d" % (turn + 1, cached(reply), before)
            edited = messages[:-1] + [{"role": "user", "content": "Say something else about it."}]
            assert cached(ask(server, edited)) >= 0.97 * before, "turn %d, edited" % (turn + 1)
        before = reply["usage"]["prompt_tokens"]
        messages.append(reply["choices"][0]["message"])
    assert 0 < metric(server, "onebit:prefix_cache_bytes") <= metric(server, "onebit:prefix_cache_limit_bytes")
    assert metric(server, "onebit:prefix_cache_hits_total") > 30


def test_reused_text_is_the_text(own_server):
    """An edited conversation reads the same from kept states as from its beginning: neither is an answer's."""
    for message in ("Name a colour.", "Name a fruit, please."):
        messages = [SYSTEM, {"role": "user", "content": message}]
        reused, fresh = ask(own_server, messages), ask(own_server, messages, cache_prompt=False)
        assert cached(fresh) == 0 and text(reused) == text(fresh)
    assert cached(reused) > 150


def test_two_conversations_share_a_system_prompt(own_server):
    server = own_server
    ask(server, [SYSTEM] + user("Hello."))
    replies = {}

    def one(name):
        replies[name] = ask(server, [SYSTEM] + user("My name is %s. What is it?" % name), return_tokens=True)

    alone = {name: text(ask(server, [SYSTEM] + user("My name is %s. What is it?" % name), cache_prompt=False))
             for name in ("Anna", "Boris")}
    threads = [threading.Thread(target=one, args=(name,)) for name in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, reply in replies.items():
        assert cached(reply) > 150 and text(reply) == alone[name]


def test_the_billing_line_does_not_count(own_server):
    def with_line(n):
        line = "x-anthropic-billing-header: cc_version=2.1.%d; cc_entrypoint=cli; cch=%05x;" % (n, n)
        parts = [{"type": "text", "text": line}, {"type": "text", "text": SYSTEM["content"]}]
        return ask(own_server, [{"role": "system", "content": parts}] + user("Good morning to you."))

    first = with_line(1)
    second = with_line(77777)
    assert second["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    assert cached(second) > 150
    plain = ask(own_server, [SYSTEM] + user("Good morning to you."))
    assert plain["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]


def test_a_cancelled_answer_leaves_the_cache_sound(own_server):
    messages = [SYSTEM] + user("Count to a hundred in words, slowly.")
    expected = text(ask(own_server, messages, cache_prompt=False, max_tokens=40))
    for n in (1, 3, 6):
        stream = own_server.stream("/v1/chat/completions", {"messages": messages, "max_tokens": 200, "temperature": 0,
                                                             "ignore_eos": True})
        for _ in range(n):
            next(stream)
        stream.close()
        own_server.wait_until_idle()
        assert text(ask(own_server, messages, max_tokens=40)) == expected


def test_few_states_many_conversations(start):
    """A budget of a few states: it is kept to, what goes is told, and nobody notices but by the time it takes."""
    server = start("--parallel", "2", "--ctx-size", "2048", "--cache-ram", "12")
    answers = {}
    for i in range(12):
        messages = [{"role": "system", "content": "Conversation %d. %s" % (i % 6, SYSTEM["content"])}] + user(MESSAGES[i % 6])
        answers.setdefault(i % 6, set()).add(text(ask(server, messages)))
        answers[i % 6].add(text(ask(server, messages, cache_prompt=False)))
    assert all(len(texts) == 1 for texts in answers.values())
    assert metric(server, "onebit:prefix_cache_evicted_total") > 0
    assert metric(server, "onebit:prefix_cache_budget_bytes") <= 12 << 20


def test_a_saved_slot_survives_a_restart(start, tmp_path):
    flags = ["--parallel", "1", "--ctx-size", "2048", "--slot-save-path", str(tmp_path)]
    first = start(*flags)
    messages = [SYSTEM] + user("Please remember the word heliotrope.")
    reply = ask(first, messages)
    saved = first.post("/slots/0?action=save", {"filename": "talk.bin"})
    assert saved["id_slot"] == 0 and saved["n_written"] == (tmp_path / "talk.bin").stat().st_size
    messages += [reply["choices"][0]["message"]] + user("Which word was it?")
    expected = ask(first, messages)

    other = start(*flags)
    restored = other.post("/slots/0?action=restore", {"filename": "talk.bin"})
    assert restored["n_restored"] == saved["n_saved"] and restored["n_read"] == saved["n_written"]
    actual = ask(other, messages)
    assert cached(actual) == cached(expected) > 150 and text(actual) == text(expected)
    assert other.post("/slots/0?action=erase", {})["n_erased"] > 0
    assert cached(ask(other, messages)) == 0


def test_what_slots_refuse(start, own_server):
    for name in ("../talk.bin", "/etc/passwd", "a/b", "..", ".hidden", "", "x" * 300, "a\u0000b", None, 7):
        status, error = own_server.error("POST", "/slots/0?action=restore", {"filename": name})
        assert status == 400 and "filename" in error["message"]
    assert own_server.error("POST", "/slots/0?action=restore", {"filename": "none.bin"})[0] == 400
    (own_server.folder / "junk.bin").write_bytes(b"1BITSLOT" + bytes(300))
    status, error = own_server.error("POST", "/slots/0?action=restore", {"filename": "junk.bin"})
    assert status == 400 and "junk.bin" in error["message"] and str(own_server.folder) not in error["message"]
    assert own_server.error("POST", "/slots/0?action=dance", {})[0] == 400
    assert own_server.error("POST", "/slots/7?action=erase", {})[0] == 400
    assert own_server.error("POST", "/slots/x?action=erase", {})[0] == 400
