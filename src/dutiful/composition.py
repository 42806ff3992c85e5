"""Puts the parts together: the only file that knows concrete stores, deliveries and services."""

import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast
from urllib.parse import unquote, urlsplit
from uuid import UUID

from dutiful.alert import check_names
from dutiful.client import Client
from dutiful.core.errors import UsageError
from dutiful.deliveries.in_process import InProcess
from dutiful.delivery import Delivery
from dutiful.registry import Registry
from dutiful.settings import Settings
from dutiful.store import Store

if TYPE_CHECKING:
    from dutiful.observe.tracing import Tracer
    from dutiful.service import Service
    from dutiful.services.http import Http
    from dutiful.services.retention import Retention
    from dutiful.worker.worker import Worker

opening = logging.getLogger("dutiful.opening")
starting = logging.getLogger("dutiful.alerts")


def make_store(settings: Settings) -> Store:
    try:
        scheme = urlsplit(settings.database_url).scheme
    except ValueError as error:
        raise UsageError(f"database_url is no address ({error}): in a password, [ is written as %5B") from None
    match scheme:
        case "sqlite" | "":
            from dutiful.stores.sqlite import SqliteStore

            return SqliteStore(
                _sqlite_path(settings.database_url), driver=cast(Literal["apsw", "sqlite3"], settings.sqlite_driver)
            )
        case "postgresql" | "postgres":
            try:
                from dutiful.stores.postgres import PostgresStore
            except ImportError as error:
                raise UsageError(f"Postgres needs an extra ({error}): pip install 'dutiful[postgres]'") from error
            return PostgresStore(
                settings.database_url,
                schema=settings.schema,
                direct_dsn=settings.direct_url,
                pool_size=settings.pool_size,
                notify_within=settings.notify_in_transaction,
            )
        case _:
            raise UsageError(
                f"database_url has the scheme {scheme!r}; use sqlite:///jobs.db or postgresql://user@host/database"
            )


def make_delivery(settings: Settings, store: Store) -> Delivery:
    from dutiful.stores.sqlite import SqliteStore

    if isinstance(store, SqliteStore):
        return InProcess(store.data_version)
    from dutiful.deliveries.notify import Notify
    from dutiful.stores.postgres import PostgresStore

    assert isinstance(store, PostgresStore)
    direct = settings.direct_url is not None or not store.pooled
    return Notify(settings.schema, store.notify, store.connect_direct if direct else None)


def make_tracer(settings: Settings) -> "Tracer | None":
    if not settings.tracing:
        return None
    try:
        from dutiful.observe.tracing import Tracer
    except ImportError as error:
        raise UsageError(f"setting tracing needs an extra ({error}): pip install 'dutiful[otel]'") from error
    return Tracer()


def make_worker(
    app: Registry, client: Client, *, services: bool = True, worker_id: UUID | None = None, embedded: bool = False
) -> "Worker":
    """A worker on an open client; `await worker.run()` until `worker.stop()`.

    If it is `embedded`, its process goes on after it, and with that what could not be stopped.
    """
    # Imported here, for a process that only enqueues needs none of it.
    from dutiful.observe.measure import measure
    from dutiful.services.alerts import Alerts
    from dutiful.services.gates import Gates
    from dutiful.services.promoter import Promoter
    from dutiful.services.rescuer import Rescuer
    from dutiful.services.reviewer import Reviewer
    from dutiful.services.runner import Runner
    from dutiful.services.scheduler import Scheduler
    from dutiful.services.sealer import Sealer
    from dutiful.services.tallier import Tallier
    from dutiful.services.webhooks import Poster
    from dutiful.worker.plan import Plan, chosen
    from dutiful.worker.tallies import Tallies
    from dutiful.worker.worker import Worker

    store, settings, news = client.store, app.settings, client.delivery.news
    store.check_worker()
    opening.debug("retry policies of %d kinds", len(app.kinds))
    tallies = Tallies() if settings.metrics else None
    rescuer = Rescuer(store, app.kinds, rescued=None if tallies is None else tallies.rescued)
    duties: list[Service] = [Promoter(store), rescuer, Gates(store), Scheduler(store, app.new_id, client.tracer)]
    declared = [spec.record for spec in app.webhooks.values()]
    poster = Poster(store, declared, lambda: _make_http(settings), app.webhook_secrets, settings.webhook_timeout, news)
    reviewer = Reviewer(store, app.kinds, client.delivery.hint, client.tracer)
    slow: list[Service] = [make_retention(app, client), poster, reviewer, Sealer(store), Tallier(store)]
    check_names(settings.alerts_off, app.alerts)
    rules = app.alert_rules()
    if blind := ", ".join(name for name, rule in rules.items() if rule.blind):
        starting.warning(
            "setting metrics is off: this worker does not count its attempts, so these alerts do not see them: %s",
            blind,
        )
    slow.append(Alerts(store, rules, lambda now: measure(store, now=now), settings.alert_interval))
    runner = Runner(store, duties, slow, client.delivery, app.schedule_records, rescuer, poster, app.payload_rules())
    plan = Plan(
        worker_id=worker_id or app.new_id(),
        store=store,
        delivery=client.delivery,
        settings=settings,
        kinds=chosen(app.kinds, settings.kinds),
        resources=app.resources,
        breakers=app.breaker_policies(),
        breaker_kinds=app.breaker_kinds(),
        uniform=random.uniform,
        duties=runner if services else None,
        tallies=tallies,
        tracer=client.tracer,
        make_store=(lambda: make_store(settings)) if embedded else None,
    )
    worker = Worker(plan)
    opening.debug("worker made")
    opening.debug("webhooks: %s", ", ".join(app.webhooks) or "none but jobs' own")
    return worker


def make_retention(app: Registry, client: Client) -> "Retention":
    from dutiful.services.retention import Retention

    return Retention(
        client.store,
        app.settings.retention,
        app.settings.stale_after,
        on_stale=app.stale_callbacks,
        on_delete=app.delete_callbacks,
        news=client.delivery.news,
    )


def _make_http(settings: Settings) -> "Http":
    try:
        from dutiful.services.http import Http
    except ImportError as error:
        raise UsageError(f"webhooks need an extra ({error}): pip install 'dutiful[webhooks]'") from error
    from dutiful.services.guard import Guard

    return Http(Guard(settings.webhook_networks), settings.webhook_timeout.total_seconds())


def _sqlite_path(url: str) -> Path:
    """sqlite:///relative.db, sqlite:////absolute.db, or a bare path."""
    parts = urlsplit(url)
    if parts.scheme == "":
        return Path(url)
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path:
        raise UsageError(f"database_url {url!r}: write sqlite:///relative.db or sqlite:////absolute/path.db")
    return Path(path)
