"""The command line, `dutiful`: one file a group of commands.

Exit codes:
  0    done
  1    failed: no such job, a failed job awaited with --wait, findings of `doctor`, an unexpected error
  2    wrong usage: a bad option, payload, id or setting, an unknown kind, an app that cannot be imported
  3    unknown: `audit verify --expect` names a seal that retention has deleted, or `alerts --firing` finds that nothing
       fires, but no worker evaluates the rules
  69   the database is unavailable, not migrated, or newer than this release
  74   the output cannot be written: the disk that stdout goes to is full
  130  interrupted from the keyboard
Errors are one line on stderr; results are on stdout.
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
    """Runs one command and returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # for a terminal that cannot show a character
    try:
        code = _run(sys.argv[1:] if args is None else args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has closed it, as `| head` does
        _discard_output()
        return FAILURE  # as typer does if it notices first
    except OSError as error:
        # An error without a file name is of a stream, and the only one written to is stdout.
        if error.errno not in NOT_WRITTEN or error.filename is not None:
            raise
        _discard_output()
        return _refuse(
            f"the output cannot be written ({error.strerror}); what was asked may be done: check before you repeat it",
            NO_OUTPUT,
        )


def _run(args: Sequence[str]) -> int:
    from dutiful.cli.registry import build

    chosen, rest = _hoisted(args)
    verb = next((arg for arg in rest if not arg.startswith("-")), None)
    try:
        code = build(verb)(args=chosen + rest, prog_name="dutiful", standalone_mode=False)
        return code if isinstance(code, int) else OK
    except DutifulError as error:
        return _refuse(str(error), exit_code(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        # Typer may bundle its own click, so usage errors are recognised by their method instead of their class.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        # Without the phrases of the validation library.
        reworded = message().replace("': Value error, ", "': ").replace("': Input should", "': it should")
        return _refuse(reworded, getattr(error, "exit_code", USAGE))


def _discard_output() -> None:
    """Discards buffered output, which the interpreter would try to write again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(error: DutifulError) -> int:
    match error:
        case UsageError():
            return USAGE
        case StoreUnavailable() | SchemaMismatch():
            return UNAVAILABLE
        case _:
            return FAILURE


def _refuse(message: str, code: int) -> int:
    if message:
        from dutiful.cli.output.printing import plain
        from dutiful.core.redaction.redact import redact

        # An error quotes what was typed, and an address with a password may have been typed in the wrong place.
        print(f"dutiful: {plain(' '.join(redact(message).split()))}", file=sys.stderr)
    return code


def _hoisted(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Moves the options for app and database to the front: typer expects them before the command."""
    first: list[str] = []
    rest: list[str] = []
    remaining = iter(args)
    for arg in remaining:
        if arg == "--":  # no options follow
            return first, [*rest, arg, *remaining]
        if arg in ANYWHERE:
            first += [arg, *itertools.islice(remaining, 1)]
        elif arg.startswith(tuple(f"{name}=" for name in ANYWHERE)):
            first.append(arg)
        else:
            rest.append(arg)
    return first, rest
