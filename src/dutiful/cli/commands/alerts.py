"""`alerts`: which alerts fire, since when, and by which rules."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from dutiful.cli.options import AsJson
from dutiful.cli.output.printing import ago, note, print_json, print_table
from dutiful.cli.target import operate, target
from dutiful.core.duration import brief
from dutiful.core.metrics.alert import AlertRule, AlertState
from dutiful.declare.alert import check_names
from dutiful.operator import Operator
from dutiful.operator.alerts import AlertRecord

FIRES = 1  # the exit code of --firing if any does
UNWATCHED = 3  # and if none does, but no worker evaluates the rules
alerts = typer.Typer(help="List alerts and their rules.")


def register(cli: typer.Typer) -> None:
    cli.add_typer(alerts, name="alerts", rich_help_panel="Operate")


@alerts.callback(invoke_without_command=True)
def list_alerts(
    ctx: typer.Context,
    firing: Annotated[
        bool,
        typer.Option(
            "--firing", help="Only firing alerts; exit code 1 if there are any, 3 if no worker evaluates the rules."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List firing, then pending, then cleared alerts.

    \b
    Examples:
      dutiful alerts
      dutiful alerts --firing || echo "page the on-call engineer"
      dutiful alerts rules
    """
    if ctx.invoked_subcommand is not None:
        return
    found, watched = operate(ctx, _look)
    listed = [one for one in found if one.alert.state is AlertState.FIRING or not firing]
    if as_json:
        print_json({"watched": watched or False, "alerts": [_json(one) for one in listed]})
    else:
        _print(listed, firing)
    if watched is None:
        note("no worker evaluates alerts: this is the state when the last one did, if ever")
    if firing and listed:
        raise typer.Exit(FIRES)
    if firing and watched is None:
        raise typer.Exit(UNWATCHED)


@alerts.command()
def rules(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the rules that workers with this app's code evaluate."""

    async def look(operator: Operator) -> list[AlertRule]:
        return operator.alerts.rules()

    if not target(ctx).bare:
        app = target(ctx).any_app()
        check_names(app.settings.alerts_off, app.alerts)
    found = operate(ctx, look)
    if as_json:
        print_json({"rules": [_rule_json(rule) for rule in found]})
        return
    print_table(
        ("rule", "fires when", "hold", "clears at", "clear hold", "summary", "runbook"),
        (
            (
                rule.name,
                _condition(rule),
                brief(rule.hold) if rule.hold else "at once",
                f"{rule.threshold if rule.clear is None else rule.clear:g}",
                brief(rule.clear_hold) if rule.clear_hold else "at once",
                rule.summary,
                rule.runbook,
            )
            for rule in found
        ),
        empty="all alerts are off",
    )


async def _look(operator: Operator) -> tuple[list[AlertRecord], datetime | None]:
    return await operator.alerts.all(), await operator.alerts.last_check()


def _print(found: list[AlertRecord], firing: bool) -> None:
    print_table(
        ("alert", "series", "state", "since", "value#", "fires when", "summary", "runbook"),
        (
            (
                one.alert.rule,
                one.alert.series,
                one.alert.state.value,
                ago(one.alert.cleared_at if one.alert.state is AlertState.OK else one.alert.since),
                None if one.alert.value is None else f"{one.alert.value:g}",
                None if one.rule is None else _condition(one.rule),
                one.alert.summary,
                None if one.rule is None else one.rule.runbook,
            )
            for one in found
        ),
        empty="no alert fires" if firing else "no alert fires or has fired lately",
    )


def _condition(rule: AlertRule) -> str:
    where = ", ".join(f"{label}={value}" for label, value in rule.where.items())
    series = f"{rule.metric}{{{where}}}" if where else rule.metric
    condition = f"{series} {'>' if rule.above is not None else '<'} {rule.threshold:g}"
    return f"never, as metrics are off ({condition})" if rule.unmeasured else condition


def _json(record: AlertRecord) -> dict[str, Any]:
    rule = None if record.rule is None else _rule_json(record.rule)
    return {**msgspec.structs.asdict(record.alert), "declared": rule}


def _rule_json(rule: AlertRule) -> dict[str, Any]:
    lengths = {name: getattr(rule, name).total_seconds() for name in ("hold", "clear_hold")}
    return msgspec.structs.asdict(rule) | lengths
