"""A headless Chromium, driven through a pipe by the DevTools protocol."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
KEYS = {"Tab": 9, "Enter": 13, "End": 35, "Home": 36, " ": 32,
        "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}  # fmt: skip

needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")


class Page:
    """A tab: it opens pages, evaluates expressions in them, and gets keys and text."""

    def __init__(self, read, write):
        self.read, self.write, self.ids, self.rest = read, write, itertools.count(1), b""
        self.session, self.events = {}, []
        target = self.call("Target.createTarget", url="about:blank")
        attached = self.call("Target.attachToTarget", **target, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """Returns the result of a method of the protocol; events that come before it are kept."""
        asked = {"id": next(self.ids), "method": method, "params": params, **self.session}
        os.write(self.write, json.dumps(asked).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                got = os.read(self.read, 1 << 20)
                assert got, "the browser ended"
                self.rest += got
            one, _, self.rest = self.rest.partition(b"\0")
            said = json.loads(one)
            if said.get("id") == asked["id"]:
                assert "error" not in said, (method, said)
                return said["result"]
            self.events.append(said)

    def open(self, path, width=1280, height=900, view="", dark=False):
        """Opens a file in a window of a size, in light or dark colours."""
        window = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self.call("Emulation.setDeviceMetricsOverride", **window)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")  # else a new #view opens no page
        self.call("Page.navigate", url=f"{path.resolve().as_uri()}#{view}")
        self.wait("document.readyState === 'complete'")

    def run(self, expression):
        """Returns the value of an expression, once it is there."""
        how = {"awaitPromise": True, "returnByValue": True}
        done = self.call("Runtime.evaluate", expression=expression, **how)
        assert "exceptionDetails" not in done, (expression, done)
        return done["result"].get("value")

    def wait(self, expression, seconds=60):
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(expression):
            assert time.monotonic() < end, expression
            time.sleep(0.02)

    def press(self, key, *, control=False):
        """Presses a key."""
        named = {"key": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 2 * control}
        text = {} if control else {"text": {"Enter": "\r", " ": " "}.get(key, "")}
        self.call("Input.dispatchKeyEvent", type="keyDown", **named, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def type(self, text):
        """Types a text where the focus is."""
        self.call("Input.insertText", text=text)

    def picture(self, path):
        """Writes a picture of the whole page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def requests(self):
        """Returns the addresses that were asked for."""
        self.run("0")
        named = [one for one in self.events if one["method"] == "Network.requestWillBeSent"]
        return [one["params"]["request"]["url"] for one in named]

    def errors(self):
        """Returns what the console was told, and exceptions."""
        self.run("0")
        kinds = ("Log.entryAdded", "Runtime.exceptionThrown")
        return [one["params"] for one in self.events if one["method"] in kinds]


@contextlib.contextmanager
def opened(*flags):
    """Starts a browser and ends it; its one tab."""
    there, write = os.pipe()
    read, here = os.pipe()
    shell = f'exec "$@" 3<&{there} 4>&{here}'
    command = ["bash", "-c", shell, "bash", BROWSER, *FLAGS, *flags]
    process = subprocess.Popen(command, pass_fds=(there, here), stderr=subprocess.DEVNULL)
    os.close(there)
    os.close(here)
    try:
        yield Page(read, write)
    finally:
        process.terminate()
        process.wait(20)
        os.close(read)
        os.close(write)
