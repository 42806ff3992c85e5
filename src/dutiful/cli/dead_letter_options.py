"""The options that select dead letters, for every command that does."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from dutiful.cli.options import read_moment
from dutiful.cli.target import target
from dutiful.core.errors import UsageError
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.review.state import ReviewState
from dutiful.store.dead_letters import DeadLetterFilter


def filtered(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds these options to a command, which gets them as one DeadLetterFilter, its parameter `wanted`."""

    @wraps(command)
    def with_options(ctx: typer.Context, **given: Any) -> Any:
        chosen = {name: given.pop(name) for name in _OPTIONS}
        return command(ctx, wanted=_filter(ctx, **chosen), **given)

    own = inspect.signature(command)
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in _OPTIONS.values()]
    first, *rest = [p for name, p in own.parameters.items() if name != "wanted"]
    mine = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in rest]
    with_options.__signature__ = own.replace(parameters=[first, *mine, *parameters])  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in (first, *mine, *parameters)}
    return with_options


def _options(
    status: Annotated[list[ReviewState] | None, typer.Option(help="Only this review status; may be repeated.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only jobs of this kind; may be repeated.")] = None,
    category: Annotated[str | None, typer.Option(help="Only jobs whose kind belongs to this category.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Only jobs with this correlation id.")] = None,
    error_class: Annotated[ErrorClass | None, typer.Option(help="Only errors of this class.")] = None,
    error_type: Annotated[str | None, typer.Option(help="Only errors of this type, as in TimeoutError.")] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="Only similar errors; `dutiful dead-letters groups` shows fingerprints.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Only errors whose message contains this.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only what failed then or later: 2h (ago), 2030-01-31T09:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Only what failed before.")] = None,
) -> None:
    """Declares the options: `filtered` reads this signature."""


_OPTIONS = inspect.signature(_options).parameters


def _filter(
    ctx: typer.Context,
    *,
    status: list[ReviewState] | None,
    kind: list[str] | None,
    category: str | None,
    queue: str | None,
    correlation_id: str | None,
    error_class: ErrorClass | None,
    error_type: str | None,
    fingerprint: str | None,
    text: str | None,
    since: str | None,
    until: str | None,
) -> DeadLetterFilter:
    return DeadLetterFilter(
        status=status or (),
        kinds=_kinds(ctx, kind or [], category),
        queue=queue,
        correlation_id=correlation_id,
        error_class=error_class,
        error_type=error_type,
        fingerprint=fingerprint,
        text=text,
        since=read_moment(since, "--since"),
        until=read_moment(until, "--until"),
    )


def _kinds(ctx: typer.Context, kinds: list[str], category: str | None) -> list[str]:
    if category is None:
        return kinds
    app = target(ctx).app()
    if category not in app.categories:
        raise UsageError(f"there is no category {category!r}; there are: {', '.join(app.categories) or 'none'}")
    members = [name for name, kind in app.kinds.items() if kind.category == category]
    found = [name for name in members if not kinds or name in kinds]
    if not found:
        raise UsageError(f"none of these kinds belongs to the category {category}, which has {', '.join(members)}")
    return found
