"""`dutiful server`: the admin API over HTTP, until told to stop."""

import asyncio
from typing import Annotated

import typer

from dutiful.cli.log_options import LogFormat, LogLevel, adopt, set_up
from dutiful.cli.target import target as chosen
from dutiful.core.errors import UsageError


def register(cli: typer.Typer) -> None:
    cli.command()(server)


def server(
    ctx: typer.Context,
    app_name: Annotated[
        str | None, typer.Argument(metavar="[MODULE:NAME]", help="The app, as in myapp.jobs:app.", show_default=False)
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0 for any that is free.")] = 8000,
    public_status: Annotated[
        bool, typer.Option("--public-status", help="Whoever knows a job's id may see how it fares, without a token.")
    ] = False,
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", help="Whoever can reach /metrics may read it, without a token.")
    ] = False,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="Believe X-Forwarded-For from there, as in 10.0.0.0/8; may be repeated."),
    ] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
) -> None:
    """Serve the admin API until TERM or INT: then end what is asked, within ten seconds.

    \b
    Examples:
      dutiful server jobs:app --port 8080
    """
    set_up(log_level, log_format)
    try:
        from dutiful.web.server import serve
    except ImportError as error:
        raise UsageError(f"the server needs more packages ({error}): pip install 'dutiful[web]'") from None
    app = chosen(ctx).app(app_name)
    adopt(app, log_format)
    asyncio.run(
        serve(
            app,
            host,
            port,
            public_status=public_status,
            open_metrics=open_metrics,
            trusted_proxies=trusted_proxy or (),
        )
    )
