"""`encryption`: keys of encrypted kinds, and rotation."""

import typer

from dutiful.cli.options import AsJson, Reason
from dutiful.cli.output.printing import note, print_json, print_table, say
from dutiful.cli.target import operate
from dutiful.core.errors import DutifulError
from dutiful.operator.encryption import KeyUse, Rotation
from dutiful.payload.key_ring import new_key

encryption = typer.Typer(help="Make keys for encrypted kinds; rotate them.", no_args_is_help=True)


def register(cli: typer.Typer) -> None:
    cli.add_typer(encryption, name="encryption", rich_help_panel="Operate")


@encryption.command()
def key() -> None:
    """Make a key; it is printed and not stored.

    \b
    Examples:
      export DUTIFUL_ENCRYPTION_KEYS="2026-11:$(dutiful encryption key)"
    """
    typer.echo(new_key())


@encryption.command()
def status(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Count the values that each key has sealed. A key that has none can be removed.

    It reads all tables. It needs no keys; with them, it says which of them it knows.
    """
    found = operate(ctx, lambda operator: operator.encryption.status())
    if as_json:
        print_json({"keys": found})
        return
    print_table(
        ("key", "values#", "here", "in"),
        ((use.key, use.values, _here(use), ", ".join(f"{n:,} {at}" for at, n in use.places.items())) for use in found),
        empty="nothing is sealed",
    )


@encryption.command()
def rotate(ctx: typer.Context, reason: Reason = None) -> None:
    """Seal everything anew that has another key than the first of encryption_keys.

    Workers may run meanwhile. If it is interrupted, run it again: it goes on with what is left. On Postgres it needs
    the owner of the tables, as `dutiful migrate` does.

    \b
    Examples:
      dutiful encryption rotate --reason "yearly"
    """
    last = ""

    def tell(done: Rotation) -> None:
        nonlocal last
        if done.place != last:
            note(f"{done.place}: {done.rows:,} rows so far")
            last = done.place

    done = operate(ctx, lambda operator: operator.encryption.rotate(reason, tell))
    say(f"{done.rows:,} rows sealed anew with the key {done.key}")
    if done.unreadable:
        left = ", ".join(f"{count:,} with the key {key}" for key, count in done.unreadable.items())
        raise DutifulError(
            f"these values could not be opened, and stay as they are: {left}; add their keys to encryption_keys, and "
            "run it again"
        )
    if done.written_meanwhile:
        raise DutifulError(
            f"{done.written_meanwhile:,} rows were written at the same time, and may have an older key: run it again"
        )


def _here(use: KeyUse) -> str:
    return "current" if use.current else "known" if use.known else "not known"
