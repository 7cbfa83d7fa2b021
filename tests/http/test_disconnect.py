"""Clients that leave: the slot is free at once, others don't notice, and /health answers whatever goes on."""
import json
import subprocess
import threading
import time

import pytest
from serving import long_prompt, user, wait_for


@pytest.fixture(scope="module")
def single(start):
    """A server with one slot, so that a second request has to wait."""
    return start("--parallel", "1", "--ctx-size", "4096")


def curl(server, body, path="/v1/chat/completions"):
    command = ["curl", "-sN", server.url + path, "-d", json.dumps(body)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


ENDLESS = {"max_tokens": 3000, "ignore_eos": True, "temperature": 0}


def freed_within(server, seconds):
    return wait_for(lambda: not server.busy_slots(), seconds, every=0.002)


def answers(server):
    return server.post("/v1/completions", {"prompt": "And now", "max_tokens": 3, "ignore_eos": True}, timeout=10)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_an_answer(single, stream):
    client = curl(single, {"messages": user("Go on and on."), "stream": stream, **ENDLESS})
    if stream:
        assert client.stdout.readline().startswith(b"data: ")
    wait_for(lambda: any(slot["next_token"]["n_decoded"] > 5 for slot in single.busy_slots()), 20)
    client.kill()
    freed_within(single, 2)
    assert answers(single)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_a_prompt(single, stream):
    client = curl(single, {"prompt": long_prompt(1), "stream": stream, "cache_prompt": False, **ENDLESS}, "/v1/completions")
    wait_for(lambda: any(slot["n_past"] < slot["n_prompt_tokens"] for slot in single.busy_slots()), 20, every=0.001)
    client.kill()
    freed_within(single, 3)
    assert answers(single)["timings"]["cache_n"] == 0


def test_leaving_the_queue(single):
    first = curl(single, {"messages": user("Go on."), "stream": True, **ENDLESS})
    wait_for(lambda: single.busy_slots(), 5)
    waiting = curl(single, {"messages": user("Me too."), "stream": True, **ENDLESS})

    def queued():
        text = single.request("GET", "/metrics")[2]
        return int(float(text.split("llamacpp:requests_deferred ")[-1].split()[0]))

    wait_for(lambda: queued() == 1, 5)
    before = single.busy_slots()[0]
    waiting.kill()
    wait_for(lambda: queued() == 0, 2)
    after = single.busy_slots()[0]
    assert after["id_task"] == before["id_task"]  # the one being answered goes on
    wait_for(lambda: single.busy_slots()[0]["next_token"]["n_decoded"] > after["next_token"]["n_decoded"], 5)
    first.kill()
    freed_within(single, 2)


def test_a_neighbour_goes_on(server):
    body = {"messages": user("Count."), "max_tokens": 80, "ignore_eos": True, "temperature": 0, "cache_prompt": False}
    alone = server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
    leaver = curl(server, {"messages": user("Something else."), "stream": True, **ENDLESS})
    leaver.stdout.readline()
    chunks = server.stream("/v1/chat/completions", body)
    text = ""
    for i, chunk in enumerate(chunks):
        if i == 10:
            leaver.kill()
        text += chunk["choices"][0]["delta"].get("content") or ""
    assert text == alone
    freed_within(server, 2)


def test_many_clients_come_and_go(server):
    for i in range(12):
        client = curl(server, {"messages": user("Number %d" % i), "stream": i % 2 == 0, **ENDLESS})
        time.sleep(0.02 * (i % 5))
        client.kill()
    freed_within(server, 5)
    assert answers(server)["usage"]["completion_tokens"] == 3


def expect_quick_health(server, until):
    """Asks /health over and over on new connections: nine in ten within 50 ms, and none waits for the engine (the rest
    is for machines that are busy with other things)."""
    times = []
    while not until() or len(times) < 10:
        begin = time.monotonic()
        assert server.request("GET", "/health", timeout=5)[0] == 200
        times.append(time.monotonic() - begin)
        time.sleep(0.005)
    times.sort()
    assert times[len(times) * 9 // 10] < 0.05, times
    assert times[-1] < 0.5, times


def test_health_during_a_long_prompt(single):
    body = {"prompt": long_prompt(2), "max_tokens": 1, "cache_prompt": False}
    replies = []
    thread = threading.Thread(target=lambda: replies.append(single.post("/v1/completions", body)))
    thread.start()
    expect_quick_health(single, lambda: not thread.is_alive())
    thread.join()
    assert replies[0]["timings"]["prompt_n"] >= 2000


def test_health_with_a_full_queue(start):
    crowded = start("--parallel", "1", "--ctx-size", "4096", "--max-queue", "8")
    clients = [curl(crowded, {"messages": user("Number %d" % i), "stream": True, **ENDLESS}) for i in range(9)]
    wait_for(lambda: "llamacpp:requests_deferred 8" in crowded.request("GET", "/metrics")[2], 5)
    status, headers, text = crowded.request("POST", "/v1/completions", {"prompt": "x"})
    assert status == 503 and headers["Retry-After"] and "queue" in text
    end = time.monotonic() + 1
    expect_quick_health(crowded, lambda: time.monotonic() > end)
    for client in clients:
        client.kill()
    freed_within(crowded, 5)
    assert answers(crowded)["usage"]["completion_tokens"] == 3
