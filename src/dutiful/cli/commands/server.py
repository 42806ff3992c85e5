"""`server`: serves the admin API over HTTP."""

import asyncio
from typing import Annotated

import typer

from dutiful.cli.options import LogFormat, LogLevel, adopt_log_format, set_up_logging
from dutiful.cli.target import target as chosen
from dutiful.core.errors import UsageError


def register(cli: typer.Typer) -> None:
    cli.command()(server)


def server(
    ctx: typer.Context,
    app_name: Annotated[
        str | None, typer.Argument(metavar="[MODULE:NAME]", help="The app, as in myapp.jobs:app.", show_default=False)
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 for any free one.")] = 8000,
    public_status: Annotated[
        bool, typer.Option("--public-status", help="Show a job's status to all who know its id, without a token.")
    ] = False,
    open_metrics: Annotated[bool, typer.Option("--open-metrics", help="Serve /metrics without a token.")] = False,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="Trust X-Forwarded-For from there, as in 10.0.0.0/8; may be repeated."),
    ] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
) -> None:
    """Serve the admin API until TERM or INT; open requests have ten seconds to finish.

    \b
    Examples:
      dutiful server jobs:app --port 8080
    """
    set_up_logging(log_level, log_format)
    try:
        from dutiful.web.server import serve
    except ImportError as error:
        raise UsageError(f"the server needs more packages ({error}): pip install 'dutiful[web]'") from None
    app = chosen(ctx).app(app_name)
    adopt_log_format(app, log_format)
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
