"""Renders pages by templates: the host's own in a thread, an organization's in a process with limits."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.docverse.render_process import render_now

BUILT_IN = {path.name: path.read_text() for path in (Path(__file__).parent / "templates").glob("*.html")}
NAMES = sorted(BUILT_IN)
PROGRAM = Path(__file__).with_name("render_process.py")
SECONDS = 5  # of the processor; the clock may show twice as much
MEMORY = 512 * 1024 * 1024
LARGEST = 4_000_000  # bytes of all pages together
Pages = dict[str, bytes]


class TemplateFailed(Exception):
    """A template that cannot be rendered, or takes more than it may; the message says which."""


async def render(own: Mapping[str, str], shown: Mapping[str, Any]) -> Pages:
    """The pages of a project; those that `own` has no template for are rendered by the built-in ones."""
    if not own:
        pages = await asyncio.to_thread(render_now, BUILT_IN, NAMES, shown)
    else:
        pages = await _render_apart({**BUILT_IN, **own}, shown)
    return {name: text.encode() for name, text in pages.items()}


async def _render_apart(templates: Mapping[str, str], shown: Mapping[str, Any]) -> dict[str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", PROGRAM,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env={},
    )  # fmt: skip
    asked = {"templates": templates, "names": NAMES, "shown": shown, "seconds": SECONDS, "memory": MEMORY}
    try:
        async with asyncio.timeout(2 * SECONDS):
            written = await _talk(process, json.dumps(asked).encode())
            await process.wait()
    except TimeoutError:
        written = b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if len(written) > LARGEST:
        raise TemplateFailed(f"the pages of the template have over {LARGEST:,} bytes: show less")
    try:
        answer = json.loads(written)
    except ValueError:  # the kernel has ended it
        raise TemplateFailed(
            f"the template took over {SECONDS} s, or over {MEMORY // 2**20} MiB of memory: show less"
        ) from None
    if "error" in answer:
        raise TemplateFailed(f"the template cannot be rendered: {answer['error']}")
    pages: dict[str, str] = answer["pages"]
    return pages


async def _talk(process: asyncio.subprocess.Process, asked: bytes) -> bytes:
    """Writes and reads to the end, but not more than may be: what is written may be anything."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(asked)
    process.stdin.close()
    written = bytearray()
    while len(written) <= LARGEST and (piece := await process.stdout.read(65536)):
        written += piece
    if len(written) > LARGEST:
        process.kill()
    return bytes(written)
