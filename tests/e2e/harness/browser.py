"""Chromium without a window, driven over its DevTools protocol."""

import base64
import json
import os
import re
import shutil
import socket
import struct

PATIENCE = 60

# The code of each key, and the text that it types.
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "ArrowDown": (40, "")}


def find():
    """The browser's path, or None."""
    return shutil.which("chromium")


class Browser:
    """One page of a browser of its own. Errors of the page are collected in `errors`."""

    def __init__(self, box, url):
        self.errors, self.last = [], 0
        profile = box.path("browser")
        log = box.path("browser.log")
        with open(log, "w") as output:
            box.spawn(
                find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}",
                "--remote-debugging-port=0", "about:blank", stdout=output, stderr=output,
            )  # fmt: skip
        from . import wait_for

        def address():
            with open(log) as lines:
                return re.search(r"DevTools listening on ws://([\d.]+):(\d+)(/\S+)", lines.read())

        wait_for(address, "the browser listens", PATIENCE)
        host, port, path = address().groups()
        self.connect(host, int(port), path)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log":
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)

    session = None

    def connect(self, host, port, path):
        """Opens the WebSocket."""
        self.sock = socket.create_connection((host, port), PATIENCE)
        key = base64.b64encode(os.urandom(16)).decode()
        self.sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.file = self.sock.makefile("rb")
        while self.file.readline().strip():
            pass

    def call(self, method, **parameters):
        """Calls a method and gives its result."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode()
        # A mask of zeros leaves the data as it is.
        self.sock.sendall(b"\x81" + struct.pack(">BQ", 0x80 | 127, len(data)) + bytes(4) + data)
        while True:
            answer = json.loads(self.receive())
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def receive(self):
        """Receives one message."""
        data, final = b"", False
        while not final:
            first, length = self.file.read(2)
            final = bool(first & 0x80)
            if length == 126:
                (length,) = struct.unpack(">H", self.file.read(2))
            elif length == 127:
                (length,) = struct.unpack(">Q", self.file.read(8))
            data += self.file.read(length)
        return data

    def note(self, event):
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(parameters["entry"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(parameters["args"]))

    def value(self, expression):
        """The value of an expression of JavaScript in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def press(self, key):
        """Presses and releases a key: one of KEYS."""
        code, text = KEYS[key]
        for event in "keyDown", "keyUp":
            self.call("Input.dispatchKeyEvent", type=event, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def look(self, width, height, scheme):
        """Shows the page in this size, dark or light."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
