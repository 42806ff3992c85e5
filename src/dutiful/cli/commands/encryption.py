"""`encryption`: keys of encrypted kinds."""

import typer

from dutiful.payload.key_ring import new_key

encryption = typer.Typer(help="Make keys for encrypted kinds.", no_args_is_help=True)


def register(cli: typer.Typer) -> None:
    cli.add_typer(encryption, name="encryption", rich_help_panel="Operate")


@encryption.callback()
def group() -> None:
    """Make keys for encrypted kinds."""


@encryption.command()
def key() -> None:
    """Make a key; it is printed and not stored.

    \b
    Examples:
      export DUTIFUL_ENCRYPTION_KEYS="2026-11:$(dutiful encryption key)"
    """
    typer.echo(new_key())
