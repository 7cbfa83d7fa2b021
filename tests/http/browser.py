"""Chromium without a window, driven through its DevTools protocol."""
import base64
import json
import pathlib
import subprocess
import urllib.request

from serving import wait_for
from websockets.sync.client import connect


class Browser:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0",
             "--user-data-dir=%s" % self.folder, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = self.folder / "DevToolsActivePort"
        wait_for(lambda: port_file.exists() and "\n" in port_file.read_text(), 60)
        port = port_file.read_text().split()[0]
        pages = []

        def page_is_there():
            with urllib.request.urlopen("http://127.0.0.1:%s/json/list" % port) as reply:
                pages[:] = [t for t in json.load(reply) if t["type"] == "page"]
            return pages

        wait_for(page_is_there, 30)
        self.connection = connect(pages[0]["webSocketDebuggerUrl"], max_size=None)
        self.socket = self.connection.__enter__()
        self.n_sent = 0
        self.requests = []  # URLs asked for by the page
        self.problems = []  # exceptions, failed loads, blocked content
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.send(domain + ".enable")

    def close(self):
        self.connection.__exit__(None, None, None)
        self.process.terminate()
        self.process.wait(20)

    def send(self, method, **params):
        self.n_sent += 1
        self.socket.send(json.dumps({"id": self.n_sent, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=60))
            if message.get("method") == "Runtime.exceptionThrown":
                self.problems.append(message["params"]["exceptionDetails"].get("text", "exception"))
            if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.problems.append(message["params"]["entry"]["text"])
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            if message.get("id") == self.n_sent:
                assert "error" not in message, message
                return message["result"]

    def open(self, url):
        self.requests = []
        self.send("Page.navigate", url=url)
        wait_for(lambda: self.run("document.readyState") == "complete", 30)

    def run(self, expression):
        """The value of a JavaScript expression (promises are awaited)."""
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression, timeout=60):
        wait_for(lambda: self.run(expression), timeout, every=0.05)

    def type(self, text):
        self.send("Input.insertText", text=text)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode={"Enter": 13, "Tab": 9}[key], text="\r" if key == "Enter" and kind == "keyDown" else "")

    def click(self, selector):
        box = self.run("(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector(%s).getBoundingClientRect())"
                       % json.dumps(selector))
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def screen(self, width, height, scheme="light"):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def save_picture(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))
