"""A real browser without a window, driven over the DevTools protocol through a pipe."""

import asyncio
import base64
import itertools
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1000,900",
    "--remote-debugging-pipe",
)
LARGEST = 64 * 1024 * 1024
DEADLINE = 20.0


def available() -> str | None:
    """Why there is none here."""
    return None if shutil.which("chromium") else "there is no chromium: apt-get install chromium"


class Browser:
    def __init__(self, reader: asyncio.StreamReader, commands: int) -> None:
        self._reader = reader
        self._commands = commands
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}

    async def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        return await asyncio.wait_for(answer, DEADLINE)

    async def listen(self) -> None:
        while True:
            message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            if (answer := self._answers.pop(message.get("id", 0), None)) is not None:
                if "error" in message:
                    answer.set_exception(RuntimeError(message["error"]["message"]))
                else:
                    answer.set_result(message["result"])
            elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
                page.receive(message["method"], message["params"])

    async def open(self, url: str) -> "Page":
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            await page.call(f"{domain}.enable")
        await page.call("Page.navigate", url=url)
        return page


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.problems: list[str] = []  # errors of its script, and whatever its security policy kept out

    def receive(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._browser.call(method, self._session, **params)

    async def evaluate(self, script: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script: str) -> Any:
        """Look until the answer is true; the answer."""
        until = time.monotonic() + DEADLINE
        while not (answer := await self.evaluate(script)):
            text = await self.evaluate("document.body?.innerText")
            assert time.monotonic() < until, f"{script} did not come true; the page says:\n{text}\n{self.problems}"
            await asyncio.sleep(0.03)
        return answer

    async def click(self, selector: str) -> None:
        """As a person does: it must be in sight, and nothing may lie over it."""
        await self.press(selector)
        await self.release(selector)

    async def press(self, selector: str) -> None:
        """The first half of a click."""
        await self._mouse("mousePressed", selector)

    async def release(self, selector: str) -> None:
        await self._mouse("mouseReleased", selector)

    async def _mouse(self, kind: str, selector: str) -> None:
        where = await self.until(
            f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                if (!element) return null;
                element.scrollIntoView({{block: "center"}});
                const {{x, y, width, height}} = element.getBoundingClientRect();
                return width && {{x: x + width / 2, y: y + height / 2}};
            }})()"""
        )
        await self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    async def screenshot(self) -> bytes:
        """A PNG of the whole page."""
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])


@asynccontextmanager
async def browsing(profile: Path) -> AsyncIterator[Browser]:
    command_end, commands = os.pipe()
    answers, answer_end = os.pipe()
    # Chromium reads from descriptor 3 and writes to 4.
    command = ["bash", "-c", f'exec chromium "$@" 3<&{command_end} 4>&{answer_end}', "chromium"]
    process = await asyncio.create_subprocess_exec(
        *command,
        *FLAGS,
        f"--user-data-dir={profile}",
        pass_fds=(command_end, answer_end),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    os.close(command_end)
    os.close(answer_end)
    reader = asyncio.StreamReader(LARGEST)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(answers, "rb", buffering=0)
    )
    browser = Browser(reader, commands)
    listening = asyncio.create_task(browser.listen())
    try:
        yield browser
        await browser.call("Browser.close")
        await asyncio.wait_for(process.wait(), DEADLINE)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        os.close(commands)
        if process.returncode is None:
            process.kill()
            await process.wait()
