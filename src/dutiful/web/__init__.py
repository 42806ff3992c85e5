"""The admin API, and streams of events for web applications."""

from typing import TYPE_CHECKING, Any

from dutiful.core.principal import Principal, Role
from dutiful.events import Subscription
from dutiful.web.endpoint import EventsEndpoint
from dutiful.web.sse import event_stream

if TYPE_CHECKING:
    from dutiful.web.app import create_app, router

__all__ = ["EventsEndpoint", "Principal", "Role", "Subscription", "create_app", "event_stream", "router"]


def __getattr__(name: str) -> Any:
    """Imports the admin API when it is used: it needs FastAPI, which a stream of events does not."""
    if name in ("create_app", "router"):
        from dutiful.web import app

        return getattr(app, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
