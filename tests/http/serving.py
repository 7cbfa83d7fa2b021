"""A running `1bit serve` and plain ways to talk to it; what clients do is in the tests."""
import http.client
import json
import re
import signal
import subprocess
import threading
import time
import urllib.parse


class Server:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.lines = []
        self.listening = threading.Event()
        self.url = None
        threading.Thread(target=self._read_log, daemon=True).start()
        if not self.listening.wait(20) or self.url is None:
            self.process.kill()
            raise AssertionError("the server did not listen:\n" + self.log())

    def _read_log(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"listening on (http://\S+)", line)
            if found:
                self.url = found.group(1)
                self.listening.set()
        self.listening.set()

    def log(self):
        return "".join(self.lines)

    @property
    def address(self):
        parts = urllib.parse.urlsplit(self.url)
        return parts.hostname, parts.port

    def stop(self):
        """Asks it to end; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    # --- requests ---
    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, text); a body that isn't a string is sent as JSON."""
        connection = http.client.HTTPConnection(*self.address, timeout=timeout)
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read().decode()
        finally:
            connection.close()

    def get(self, path, **headers):
        status, _, text = self.request("GET", path, headers=headers)
        assert status == 200, text
        return json.loads(text)

    def post(self, path, body, timeout=120):
        status, _, text = self.request("POST", path, body, timeout=timeout)
        assert status == 200, text
        return json.loads(text)

    def error(self, method, path, body=None, headers=None):
        """(status, error object) of a request that must fail."""
        status, _, text = self.request(method, path, body, headers)
        assert status >= 400, text
        error = json.loads(text)["error"]
        assert error["code"] == status
        return status, error

    def stream(self, path, body, timeout=60):
        """The objects of a stream as they come; checks its frame."""
        connection = http.client.HTTPConnection(*self.address, timeout=timeout)
        connection.request("POST", path, json.dumps({**body, "stream": True}))
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        assert reply.getheader("Content-Type") == "text/event-stream"
        done = False
        for line in reply:
            line = line.decode().rstrip("\n")
            if line == "" or line.startswith(":"):
                continue
            assert not done, "something follows [DONE]"
            assert line.startswith("data: "), line
            done = line == "data: [DONE]"
            if not done:
                yield json.loads(line[len("data: "):])
        assert done or path == "/completion", "the stream ended without [DONE]"
        connection.close()

    # --- states ---
    def wait_until_ready(self, timeout=120):
        def ready():
            assert self.process.poll() is None, "the server ended:\n" + self.log()
            return self.request("GET", "/health")[0] == 200

        wait_for(ready, timeout)

    def busy_slots(self):
        return [slot for slot in self.get("/slots") if slot["is_processing"]]

    def wait_until_idle(self, timeout=10):
        wait_for(lambda: not self.busy_slots(), timeout)


def wait_for(condition, timeout, every=0.01):
    """Seconds until the condition held; fails after `timeout`."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < timeout, "did not happen within %.2f s" % timeout
        time.sleep(every)
    return time.monotonic() - begin


def text_of(chunks):
    """(content, reasoning) of a chat's chunks."""
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return ("".join(d.get("content") or "" for d in deltas), "".join(d.get("reasoning_content") or "" for d in deltas))


def user(text):
    return [{"role": "user", "content": text}]


# A prompt of about 2,000 tokens for any tokenizer, different for each seed from the first words on.
def long_prompt(seed, n_words=1500):
    words = ["item%d" % ((seed * 7919 + i * i) % 997) for i in range(n_words // 2)]
    return "List %d: " % seed + " ".join(words)
