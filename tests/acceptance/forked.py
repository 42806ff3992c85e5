"""The command in a process of its own, forked from one that has imported everything: a tenth of what a start costs.

From there on all is real: arguments, environment, working directory, streams, connections and exit code. How the
command starts is for those tests to prove that ask for a fresh interpreter.
"""

import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from dutiful.cli import main
from dutiful.cli.registry import VERBS

DEADLINE_S = 60
# What commands import when they are about to need it.
LATER = ("asyncpg", "pydantic", "rich.table", "typer._adapters", "dutiful.stores.postgres", "dutiful.stores.sqlite")


def run(args: Sequence[str], folder: Path, environment: Mapping[str, str], stdin: str) -> tuple[int, str, str]:
    """The exit code and what was written to stdout and stderr."""
    with _file() as request, _file(stdin) as input_, _file() as out, _file() as err:
        json.dump({"args": args, "folder": str(folder), "environment": dict(environment)}, request)
        request.seek(0)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            files = [stream.fileno() for stream in (input_, out, err, request, theirs)]
            socket.send_fds(_server(), [b"."], files)
            theirs.close()
            ours.settimeout(DEADLINE_S)
            with ours.makefile() as answers:
                pid = int(answers.readline())
                try:
                    code = int(answers.readline())
                except TimeoutError:
                    os.kill(pid, signal.SIGKILL)
                    raise
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


def _file(content: str = "") -> IO[str]:
    file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
    file.write(content)
    file.seek(0)
    return file


@functools.cache
def _server() -> socket.socket:
    """It lives until we close our end, and so until we end."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen([sys.executable, __file__], stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
    return ours


def _serve() -> list[str]:
    """Fork a process for every request; returns in each of those, and nowhere else."""
    for name in (*(f"dutiful.cli.commands.{name}" for name in VERBS.values()), *LATER):
        importlib.import_module(name)
    gc.freeze()
    inbox = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes that wait for a command are not waited for
    while True:
        message, files, _, _ = socket.recv_fds(inbox, 1, 5)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            inbox.close()
            return _take(files)
        for file in files:
            os.close(file)


def _take(files: list[int]) -> list[str]:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    reply = files.pop()
    if pid := os.fork():
        os.write(reply, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(reply, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.close(reply)
    with os.fdopen(files.pop(), encoding="utf-8") as stream:
        request = json.load(stream)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.path[0] = request["folder"]  # as with `python -m`
    return list(request["args"])


if __name__ == "__main__":
    sys.exit(main(_serve()))
