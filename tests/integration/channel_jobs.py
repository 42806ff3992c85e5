"""Channels for worker processes in tests: a provider that writes what it was called with, and waits for a file."""

import os
import time
from pathlib import Path
from typing import Any

from dutiful.channels import ChannelCall, Channels

channels = Channels()
DIARY = "CHANNEL_DIARY"


@channels.channel("push")
def push(request: dict[str, Any], call: ChannelCall) -> int:
    """Returns when the file that its request names as `gate` exists, if it names one."""
    with Path(os.environ[DIARY]).open("a") as diary:
        diary.write(f"{call.idempotency_key} {call.attempt}\n")
    while request.get("gate") and not Path(request["gate"]).exists():
        time.sleep(0.01)
    return os.getpid()
