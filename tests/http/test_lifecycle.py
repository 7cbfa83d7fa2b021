"""Start and end of the process: loading, refusals, signals, exit statuses."""
import json
import subprocess
import time

import pytest
from serving import Server, long_prompt, user, wait_for


def run_until_exit(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return done.returncode, done.stderr


def test_loading_is_told(start):
    """Listens at once; 503 with progress until the model is there."""
    server = start(wait=False)
    seen = []

    def ready():
        status, _, text = server.request("GET", "/health")
        seen.append((status, json.loads(text)))
        return status == 200

    wait_for(ready, 60, every=0)
    loading = [body["error"] for status, body in seen if status == 503]
    assert loading, "the model was loaded before the first question"
    assert loading[0]["message"] == "Loading model" and loading[0]["type"] == "unavailable_error"
    progress = [error["progress"] for error in loading]
    assert progress == sorted(progress) and 0 <= progress[0] and progress[-1] <= 1
    assert seen[-1][1] == {"status": "ok"}


@pytest.mark.parametrize("body", [
    None,
    {"messages": user("Go on."), "max_tokens": 3000, "ignore_eos": True, "stream": True},
    {"messages": user("Go on."), "max_tokens": 3000, "ignore_eos": True},
    {"messages": user(long_prompt(3)), "max_tokens": 3000, "ignore_eos": True},
], ids=["idle", "streaming", "answering", "prompt"])
def test_sigterm(start, body):
    server = start("--ctx-size", "4096")
    client = None
    if body:
        command = ["curl", "-sN", "-w", "%{http_code}", server.url + "/v1/chat/completions", "-d", json.dumps(body)]
        client = subprocess.Popen(command, stdout=subprocess.PIPE)
        wait_for(lambda: server.busy_slots(), 20, every=0.001)
    begin = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begin < 5
    if client:
        reply = client.communicate(timeout=5)[0].decode()
        assert "the server is stopping" in reply
        if body.get("stream"):
            assert "data: [DONE]" in reply
        else:
            assert reply.endswith("503")


def test_sigterm_while_loading(start):
    server = start(wait=False)
    begin = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begin < 5


def test_a_port_in_use(binary, model_flags, server):
    status, message = run_until_exit([binary, "serve", *model_flags, "--port", str(server.address[1])])
    assert status == 1 and "cannot listen" in message


def test_open_to_everybody_only_on_request(binary, model_flags):
    status, message = run_until_exit([binary, "serve", *model_flags, "--host", "0.0.0.0", "--port", "0"])
    assert status == 2 and "--api-key" in message


def test_a_host_that_is_not_there(binary, model_flags):
    status, message = run_until_exit([binary, "serve", *model_flags, "--host", "no.such.host.invalid"])
    assert status == 2 and "no.such.host.invalid" in message


def test_files_that_are_not_models(binary, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 100)
    for path in (broken, tmp_path / "missing.gguf"):
        status, message = run_until_exit([binary, "serve", "-m", str(path), "--port", "0"])
        assert status == 3 and path.name in message


def test_the_served_name(start):
    server = start("--alias", "my-model")
    assert server.get("/v1/models")["data"][0]["id"] == "my-model"
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "model": "gpt-4"})["model"] == "my-model"


def test_acting_as_llama_server(binary, model_flags):
    """Called with a flag first, as programs that start llama-server do."""
    server = Server([binary, *model_flags[:2], "--port", "0", "--ctx-size", "128", "--jinja", "--metrics"])
    try:
        server.wait_until_ready()
        assert server.get("/slots")[0]["n_ctx"] == 128
        assert server.post("/completion", {"prompt": "x", "n_predict": 200, "ignore_eos": True})["stop_type"] == "limit"
    finally:
        assert server.stop() == 0
