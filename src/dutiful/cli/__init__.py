"""The command line, `dutiful`: one file a group of verbs.

Exit codes:
  0    done
  1    it did not work out: no such job, a failed job awaited with --wait, findings of `doctor`, an unexpected error
  2    asked in the wrong way: a bad option, payload, id or setting, an unknown kind, an app that cannot be imported
  3    it cannot be told: `audit verify --expect` names a seal that retention has deleted, or `alerts --firing` finds
       that nothing fires, but nobody watches
  69   the database is unavailable, not migrated, or newer than this release
  74   the answer cannot be written: the disk that stdout goes to is full
  130  interrupted from the keyboard
Errors are one line on stderr; what a command found out is on stdout.
"""

import errno
import itertools
import os
import sys
from collections.abc import Sequence

from dutiful.core.errors import DutifulError, SchemaMismatch, StoreUnavailable, UsageError

OK, FAILURE, USAGE, UNKNOWN, UNAVAILABLE, NO_OUTPUT, INTERRUPTED = 0, 1, 2, 3, 69, 74, 130
NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
ANYWHERE = ("--app", "--database-url")


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows a mark instead
    try:
        code = _run(sys.argv[1:] if args is None else args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read our output has seen enough, as in `| head`
        _write_no_more()
        return FAILURE  # as typer does where it notices first
    except OSError as error:
        # Files have names; what has none is a stream, and the only one that we write answers to is stdout.
        if error.errno not in NOT_WRITTEN or error.filename is not None:
            raise
        _write_no_more()
        return _refuse(
            f"the answer cannot be written ({error.strerror}); what was asked may be done: see before you ask again",
            NO_OUTPUT,
        )


def _run(args: Sequence[str]) -> int:
    from dutiful.cli.commands import build

    chosen, rest = _hoisted(args)
    verb = next((word for word in rest if not word.startswith("-")), None)
    try:
        code = build(verb)(args=chosen + rest, prog_name="dutiful", standalone_mode=False)
        return code if isinstance(code, int) else OK
    except DutifulError as error:
        return _refuse(str(error), exit_code(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        # Typer may or may not bring a click of its own, so its usage errors are known by what they can do.
        told = getattr(error, "format_message", None)
        if told is None:
            raise
        return _refuse(_reworded(told()), getattr(error, "exit_code", USAGE))


def _write_no_more() -> None:
    """What waits to be written goes nowhere: the interpreter would try again as it ends, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(error: DutifulError) -> int:
    match error:
        case UsageError():
            return USAGE
        case StoreUnavailable() | SchemaMismatch():
            return UNAVAILABLE
        case _:
            return FAILURE


def _reworded(message: str) -> str:
    """Without the words of the library that reads options for what it has read."""
    return message.replace("': Value error, ", "': ").replace("': Input should", "': it should")


def _refuse(message: str, code: int) -> int:
    if message:
        from dutiful.cli.output import plain

        print(f"dutiful: {plain(' '.join(message.split()))}", file=sys.stderr)
    return code


def _hoisted(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options that choose app and database may stand anywhere; typer wants them before the verb."""
    first: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":  # what follows is nobody's option
            return first, [*rest, word, *words]
        if word in ANYWHERE:
            first += [word, *itertools.islice(words, 1)]
        elif word.startswith(tuple(f"{name}=" for name in ANYWHERE)):
            first.append(word)
        else:
            rest.append(word)
    return first, rest
