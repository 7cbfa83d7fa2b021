"""Users at the same time: nobody sees a word of another, and everybody gets the text they would get alone."""
import threading

import pytest
from serving import user

WORDS = {"zebra": "The zebra saw a zebra. The zebra saw a zebra. The zebra saw a",
         "piano": "The piano hit a piano. The piano hit a piano. The piano hit a"}


def ask(server, word, fields, stream):
    body = {"prompt": WORDS[word], "max_tokens": 40, "ignore_eos": True, "temperature": 0, "cache_prompt": False, **fields}
    if stream:
        return "".join(chunk["choices"][0]["text"] for chunk in server.stream("/v1/completions", body))
    return server.post("/v1/completions", body)["choices"][0]["text"]


@pytest.mark.parametrize("fields", [{}, {"speculative.n_max": 0}], ids=["drafting", "plain"])
def test_no_shared_text(server, fields):
    alone = {word: ask(server, word, fields, False) for word in WORDS}
    for word, text in alone.items():
        assert word in text and not any(other in text for other in WORDS if other != word)
    results = []

    def one_user(word, n):
        for i in range(n):
            results.append((word, ask(server, word, fields, stream=i % 2 == 0)))

    # More users than slots, so that slots change hands all the time.
    threads = [threading.Thread(target=one_user, args=(word, 3)) for word in list(WORDS) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 12
    for word, text in results:
        assert text == alone[word]


def test_sampled_answers_of_several_users(server):
    """A seed gives the same text whoever else is there."""
    def sampled(seed):
        body = {"messages": user("Tell me about seed %d." % seed), "max_tokens": 24, "temperature": 1.0, "seed": seed,
                "cache_prompt": False}
        return server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]

    alone = {seed: sampled(seed) for seed in (1, 2, 3)}
    together = {}
    threads = [threading.Thread(target=lambda s=seed: together.update({s: sampled(s)})) for seed in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
