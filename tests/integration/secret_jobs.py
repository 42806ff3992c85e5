"""An app that needs its secrets when it is imported, with handlers that tell what their process knows of them."""

import os
import sys
from pathlib import Path

from dutiful import Dutiful, Retry

app = Dutiful(os.environ["DUTIFUL_DATABASE_URL"])
app.webhook("audit", "https://example.org/hook")
ONCE = Retry(max_attempts=1)


@app.job
async def child() -> None: ...


@app.job(process=True, retry=ONCE)
def environment() -> list[str]:
    return [repr((dict(os.environ), sys.argv)), Path("/proc/self/environ").read_text().replace("\0", "\n")]


@app.job(process=True, retry=ONCE, inherit_secrets=True)
def whole_environment() -> list[str]:
    return [repr((dict(os.environ), sys.argv)), Path("/proc/self/environ").read_text().replace("\0", "\n")]


@app.job(process=True, retry=ONCE)
def enqueues() -> str:
    return str(child.sync.enqueue().id)


@app.job(process=True, retry=ONCE, inherit_secrets=True)
def enqueues_with_secrets() -> str:
    return str(child.sync.enqueue().id)


@app.job(retry=ONCE)
def in_thread() -> str:
    return os.environ["DUTIFUL_DATABASE_URL"]
