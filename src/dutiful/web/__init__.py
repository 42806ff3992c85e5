"""Dutiful in a web application."""

from dutiful.watcher import Wanted
from dutiful.web.endpoint import EventsEndpoint
from dutiful.web.sse import event_stream

__all__ = ["EventsEndpoint", "Wanted", "event_stream"]
