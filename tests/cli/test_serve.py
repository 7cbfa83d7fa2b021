"""serve: as a command, as llama-server, and its end. What it answers is tested in tests/http."""
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest


class Serving:
    """A server on a free port; `url` once it listens."""

    def __init__(self, command):
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log, self.url = "", None
        for line in self.process.stderr:
            self.log += line
            found = re.search(r"listening on (http://\S+)", line)
            self.url = found.group(1) if found else self.url
            if "ready" in line:
                break
        assert "ready" in self.log, self.log
        for _ in range(200):
            if self.status("/health") == 200:
                return
            time.sleep(0.05)
        raise AssertionError("not healthy after being ready")

    def status(self, path):
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    def get(self, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=60) as reply:
            return json.load(reply)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        assert out == "" and self.process.returncode == 0, self.log + err


@pytest.fixture
def start():
    running = []

    def run(*command):
        running.append(Serving(command))
        return running[-1]

    yield run
    for server in running:
        server.process.kill()
        server.process.communicate()


def test_serve_answers_and_ends(binary, files, start):
    for number in (signal.SIGTERM, signal.SIGINT):
        server = start(binary, "serve", "-m", files.h32, "--dflash", files.drafter_q8, "--port", "0", "-t", "1", "--alias", "tiny")
        assert server.get("/v1/models")["data"][0]["id"] == "tiny"
        request = {"messages": [{"role": "user", "content": "the"}], "max_tokens": 4, "temperature": 0}
        reply = server.get("/v1/chat/completions", request)
        assert reply["model"] == "tiny" and reply["usage"]["completion_tokens"] > 0
        server.end(number)


def test_as_llama_server(binary, files, start, tmp_path):
    link = tmp_path / "llama-server"
    os.symlink(os.path.abspath(binary), link)
    flags = ["-m", files.h32, "--ctx-size", "256", "--port", "0", "--jinja", "--metrics", "--model-draft", files.drafter_q8,
             "--spec-type", "draft-dflash", "--mmproj", "none.gguf", "--no-mmproj-offload", "-ngl", "99", "-ngld", "99", "-fa", "on",
             "-np", "2", "-t", "1", "-ub", "512", "--temp", "1.0", "--top-p", "0.95", "--top-k", "20", "--min-p", "0",
             "--repeat-penalty", "1.0", "--chat-template-kwargs", '{"preserve_thinking":true}', "--reasoning-format", "auto",
             "--cont-batching", "--no-webui", "-ctk", "f16", "-ctv", "f16", "--device", "CPU"]
    for program in ([link], [binary]):
        server = start(*program, *flags)
        assert "2 slots of 256 tokens, drafter dflash2" in server.log
        server.end()


def test_spec_type_none_turns_drafting_off(binary, files, start):
    server = start(binary, "-m", files.h32, "--dflash", files.drafter_q8, "--spec-type", "none", "--port", "0", "-t", "1")
    assert "drafter none" in server.log
    server.end()


def test_sampling_flags_are_the_requests_defaults(binary, files, start):
    server = start(binary, "serve", "-m", files.q8, "--port", "0", "-t", "1", "--temp", "0", "-n", "6")
    request = {"prompt": "the thing"}
    first, second = (server.get("/v1/completions", request) for _ in range(2))
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    assert first["usage"]["completion_tokens"] <= 6
    server.end()


def test_port_in_use_is_exit_1(bit, files):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = bit("serve", "-m", files.h32, "--port", port)
    assert done.code == 1 and str(port) in done.err


def test_open_to_others_needs_a_key(bit, files, tmp_path):
    done = bit("serve", "-m", files.h32, "--port", "0", "--host", "0.0.0.0")
    assert done.code == 2 and "--api-key" in done.err
    (tmp_path / "keys").write_text("\n\n")
    assert bit("serve", "-m", files.h32, "--port", "0", "--api-key-file", tmp_path / "keys").code == 3
    assert bit("serve", "-m", files.h32, "--port", "0", "--api-key", "").code == 2


def test_recipe_is_told(binary, files, start, tmp_path):
    recipe = {"id": "short-drafts", "args": ["--draft-max", "2"], "measured": "nothing, a test"}
    (tmp_path / "recipes.json").write_text(json.dumps({"recipes": [recipe]}))
    server = start(binary, "serve", "-m", files.h32, "--dflash", files.drafter_q8, "--port", "0", "-t", "1", "--recipes",
                   tmp_path / "recipes.json")
    assert "recipe short-drafts: --draft-max 2" in server.log
    server.end()
