"""Drive a headless Chromium by its DevTools protocol, for tests of pages."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)
KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "Tab": ("Tab", 9, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "b": ("b", 66, "b"),
    "u": ("u", 85, "u"),
    "l": ("l", 76, "l"),
    "p": ("p", 80, "p"),
    "/": ("/", 191, "/"),
    "End": ("End", 35, ""),
}
PATIENCE = 20.0  # seconds
# The middle of an element in the window, once it has stayed where it is: what arrives from a server
# or a kernel moves what lies below it.
MIDDLE = """new Promise((resolve, reject) => {
  const node = %s;
  node.scrollIntoView({ block: "%s" });
  let before = "";
  const look = (left) => {
    const { x, y, width, height } = node.getBoundingClientRect();
    const middle = [x + width / 2, y + height / 2];
    if (width > 0 && before === String(middle)) resolve(middle);
    else if (left) setTimeout(look, 15, left - 1);
    else reject(new Error("never at rest"));
    before = String(middle);
  };
  look(1000);
})"""


def chromium() -> str | None:
    """Return the browser's program, or None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab, with commands, JavaScript, mouse and keys; `errors` lists what the page reported."""

    def __init__(self, address: str) -> None:
        """Connect to a tab by the address of its socket, ws://..."""
        import websocket

        self._address = address
        self._socket = websocket.create_connection(address, timeout=120)
        self._number = 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the protocol and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message))
        while True:
            reply = json.loads(self._socket.recv())
            if reply.get("id") == self._number:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return reply["result"]
            self._note(reply)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"])[:500])
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.errors.append(params["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.errors.append(f"dialog: {params['message']}")
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def open(self, path: Path | str) -> None:
        """Load a file or an address and wait until its scripts have run."""
        url = path.resolve().as_uri() if isinstance(path, Path) else path
        self.call("Page.navigate", url=url)
        scheme = url.partition(":")[0]
        self.wait(f"document.readyState === 'complete' && location.protocol === '{scheme}:'")

    def tab(self, url: str) -> "Page":
        """Open another tab."""
        number = self.call("Target.createTarget", url=url)["targetId"]
        return Page(f"{self._address.rpartition('/')[0]}/{number}")

    def close(self) -> None:
        """Let go of the tab."""
        self._socket.close()

    def dark(self, wanted: bool) -> None:
        """Ask pages for dark colours, or for light ones."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def js(self, expression: str) -> Any:
        """Return the JSON value of an expression."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        start, pause = time.monotonic(), 0.02
        while not self.js(condition):
            if time.monotonic() > start + PATIENCE:
                raise TimeoutError(f"never true: {condition}")
            time.sleep(pause)
            pause = min(1.3 * pause, 0.2)  # asking costs both sides processor time

    def size(self, width: int, height: int) -> None:
        """Set the window's size in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def middle(self, selector: str) -> tuple[float, float]:
        """Scroll an element into view, and return its middle in pixels of the window."""
        return tuple(
            self.js(MIDDLE % (f"document.querySelector({json.dumps(selector)})", "nearest"))
        )

    def hover(self, selector: str) -> None:
        """Move the mouse onto an element."""
        x, y = self.middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Click on an element."""
        self.press(*self.middle(selector))

    def press(self, x: float, y: float) -> None:
        """Click at a point of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, name: str) -> None:
        """Press a key of `KEYS`."""
        code, number, text = KEYS[name]
        common = {"key": code, "code": code, "windowsVirtualKeyCode": number}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **down, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Type text into the focused element."""
        self.call("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select."""
        self.js(
            f"(s => {{ s.value = {json.dumps(value)};"
            " s.dispatchEvent(new Event('change')); })"
            f"(document.querySelector({json.dumps(selector)}))"
        )

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def pdf(self) -> bytes:
        """Print the page and return the PDF."""
        answer = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(answer["data"])


@contextmanager
def browsing() -> Iterator[Page]:
    """Yield a browser with one empty page. This needs `chromium()` and websocket-client."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = _port(Path(profile) / "DevToolsActivePort")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=PATIENCE) as reply:
                targets = json.load(reply)
            address = next(t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page")
            page = Page(address)
            try:
                yield page
            finally:
                page.close()
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE)


def _port(path: Path) -> int:
    """Return the port that the browser writes to a file when it is ready."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if path.exists() and (lines := path.read_text().split()):
            return int(lines[0])
        time.sleep(0.05)
    raise TimeoutError("the browser did not start.")
