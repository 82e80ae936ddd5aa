"""A headless Chromium, driven through the DevTools protocol over a pipe: no port, no library."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

TIMEOUT_SECONDS = 120  # for what hangs: that a machine is busy is no failure
# Keys with which the browser itself does something: their number and their text.
ACTIVE_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}


class Browser:
    """with Browser() as browser: browser.open(url); browser.eval("document.title")"""

    def __init__(self, width=1280, height=860, dark=False):
        self.home = tempfile.mkdtemp(prefix="megascale-page-")
        commands_read, self.commands = os.pipe()
        self.answers, answers_write = os.pipe()

        def pipes():
            # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
            os.dup2(commands_read, 100)
            os.dup2(answers_write, 101)
            os.dup2(100, 3)
            os.dup2(101, 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe",
             f"--user-data-dir={self.home}/profile", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, "HOME": self.home})
        os.close(commands_read)
        os.close(answers_write)
        self.buffer = b""
        self.next_id = 0
        self.session = None
        self.errors = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Log.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        if dark:
            self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        shutil.rmtree(self.home, ignore_errors=True)

    def call(self, method, **parameters):
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            answer = self._read(deadline)
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                error = json.dumps(answer["params"])[:600]
                if "willReadFrequently" not in error:  # tests read pixels
                    self.errors.append(error)
            if answer.get("id") != self.next_id:
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            return answer["result"]

    def _read(self, deadline):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            block = os.read(self.answers, 1 << 16)
            if not block:
                raise RuntimeError("Chromium ended")
            self.buffer += block
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, url):
        self.call("Page.navigate", url=url)

    def eval(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {json.dumps(result['exceptionDetails'])[:500]}")
        return result["result"].get("value")

    def wait_for(self, expression, what=None):
        """Waits until the expression is true; returns its value."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        value = None
        while time.monotonic() < deadline:
            try:
                value = self.eval(f"(found => found instanceof Element || found)({expression})")
            except RuntimeError:  # the page is being replaced
                value = None
            if value:
                return value
            time.sleep(0.05)
        text = self.eval("document.body.innerText")
        raise TimeoutError(f"{what or expression} did not become true; errors: {self.errors}; the page shows:\n{text}")

    def text(self, selector="body"):
        return self.eval(f"document.querySelector({json.dumps(selector)}).innerText")

    def before_scripts(self, script):
        """Runs the script in each page that is opened from now on, before the page's own."""
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def press(self, key):
        what = {"key": key, "code": key}
        if key in ACTIVE_KEYS:
            number, text = ACTIVE_KEYS[key]
            what.update(windowsVirtualKeyCode=number, text=text)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **what)

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as out:
            out.write(base64.b64decode(data))
