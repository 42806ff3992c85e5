"""Django's database connections around attempts: what Django does around requests, because a worker has none.

Django keeps a connection for each thread, and closes one that is unusable or too old when a request begins or ends.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from dutiful.context import Context
from dutiful.declare.attempt_hook import read_hook

log = logging.getLogger("dutiful.worker")


def django_connections(ctx: Context) -> Iterator[None]:
    """The hook around every attempt of a process that has loaded Django."""
    if asyncio._get_running_loop() is not None:
        with _thread_of_its_own():
            yield
        return
    used = close_old_connections()
    try:
        yield
    finally:
        close_old_connections(used)


class _Losses:
    """How many connections were found unusable in this process, so that other threads check theirs, too.

    They were probably lost together. Otherwise each attempt of a job could fail with the connection of another thread.
    """

    count = 0
    known = threading.local()  # `count` of the time when this thread last looked


def close_old_connections(used: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Closes this thread's connections that are unusable, too old, or still in a transaction; returns the others.

    `used` is what it returned before the attempt that ends now.
    """
    kept: dict[str, Any] = {}
    connections = _connections()
    if connections is None:
        return kept
    doubtful = getattr(_Losses.known, "count", 0) != _Losses.count
    _Losses.known.count = _Losses.count
    for connection in connections.all(initialized_only=True):
        if connection.allow_thread_sharing:
            continue  # it is another thread's, such as a test's
        alias, abandoned = connection.alias, connection.in_atomic_block
        # Django itself has replaced one that was lost inside an atomic block.
        lost = alias in used and connection.connection is not used[alias]
        try:
            if doubtful:
                connection.errors_occurred = True  # makes Django check it
            connection.close_if_unusable_or_obsolete()
        except Exception:
            log.exception("Django's connection %r could not be closed and is replaced", alias)
            abandoned = lost = True
        if connection.connection is None and connection.errors_occurred:
            abandoned = lost = True
        if lost and not doubtful:
            _Losses.count += 1
        if abandoned:
            # It keeps its errors until it connects, and one inside an atomic block never connects again.
            del connections[alias]
        elif connection.connection is not None:
            kept[alias] = connection.connection
    return kept


@contextmanager
def _thread_of_its_own() -> Iterator[None]:
    """Runs what an async handler does by sync_to_async, as the ORM does, in a thread of its attempt.

    Django does the same for an async request. In the one thread that all would share otherwise, to close a connection
    would end the queries of other jobs. The thread is started when it is first used.
    """
    asgiref: Any = sys.modules.get("asgiref.sync")
    if asgiref is None or _connections() is None:
        yield
        return
    calls, own = asgiref.SyncToAsync, asgiref.ThreadSensitiveContext()
    token = calls.thread_sensitive_context.set(own)
    try:
        yield
    finally:
        calls.thread_sensitive_context.reset(token)
        if (executor := calls.context_to_thread_executor.pop(own, None)) is not None:
            # Not waited for: a call that ignores its cancellation may still run there.
            executor.submit(_close_all)
            executor.shutdown(wait=False)


def _close_all() -> None:
    connections = _connections()
    if connections is None:
        return
    try:
        connections.close_all()
    except Exception:
        log.exception("Django's connections of an attempt could not be closed")


def _connections() -> Any:
    """Django's connections; None where it is not configured, and so has none."""
    conf, db = sys.modules.get("django.conf"), sys.modules.get("django.db")
    if conf is None or db is None or not conf.settings.configured:
        return None
    return getattr(db, "connections", None)  # missing while another thread imports it


DJANGO_HOOK = read_hook(django_connections)
