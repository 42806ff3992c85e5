"""Dutiful in a web application."""

from typing import TYPE_CHECKING, Any

from dutiful.core.principal import Principal, Role
from dutiful.watcher import Wanted
from dutiful.web.endpoint import EventsEndpoint
from dutiful.web.sse import event_stream

if TYPE_CHECKING:
    from dutiful.web.app import create_app, router

__all__ = ["EventsEndpoint", "Principal", "Role", "Wanted", "create_app", "event_stream", "router"]


def __getattr__(name: str) -> Any:
    """The admin API needs FastAPI, a stream of events nothing: who wants only that should not have to install it."""
    if name in ("create_app", "router"):
        from dutiful.web import app

        return getattr(app, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
