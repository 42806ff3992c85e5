"""Makes stores, deliveries and workers from settings; besides it, only the test kit knows concrete stores."""

import logging
from datetime import datetime
from typing import TYPE_CHECKING, Literal, assert_never, cast
from uuid import UUID

from dutiful.client.client import Client
from dutiful.core.errors import UsageError
from dutiful.declare.alert import check_names
from dutiful.delivery.backend import QueueBackend, StoreBackend
from dutiful.delivery.base import Delivery
from dutiful.delivery.file_changes import FileChanges
from dutiful.delivery.in_process import InProcessDelivery
from dutiful.registry import Registry
from dutiful.settings import WITHHELD, Settings
from dutiful.store import Store
from dutiful.store.leadership import Patience
from dutiful.stores.database_url import redacted_url, scheme_of, sqlite_path

if TYPE_CHECKING:
    from dutiful.channels import Channels
    from dutiful.channels.sql_worker import SqlWorker, SqlWorkerConfig
    from dutiful.core.metrics.catalogue import Sample
    from dutiful.maintenance.retention import Retention
    from dutiful.maintenance.runner import Service
    from dutiful.maintenance.webhooks.http import WebhookHttp
    from dutiful.observe.tracing import Tracer
    from dutiful.worker.lanes.inbox import Inbox
    from dutiful.worker.worker import Worker

opening = logging.getLogger("dutiful.startup")
alerting = logging.getLogger("dutiful.alerts")


def make_store(settings: Settings) -> Store:
    url = settings.database_url.strip()  # a file or a shell may have added a line break
    if url == WITHHELD:
        raise UsageError(
            "the address of the database is withheld from this process of a job: if its handler needs it, declare "
            "the kind with @app.job(process=True, inherit_secrets=True)"
        )
    match scheme_of(url):
        case "sqlite":
            from dutiful.stores.sqlite import SqliteStore

            return SqliteStore(sqlite_path(url), driver=cast(Literal["apsw", "sqlite3"], settings.sqlite_driver))
        case "postgresql":
            try:
                from dutiful.stores.postgres import PostgresStore
            except ImportError as error:
                raise UsageError(f"Postgres needs an extra ({error}): pip install 'dutiful[postgres]'") from error
            direct_url = None if settings.direct_url is None else settings.direct_url.strip()
            if direct_url is not None:
                redacted_url(direct_url, "direct_url")
            return PostgresStore(
                url,
                schema=settings.schema,
                direct_dsn=direct_url,
                pool_size=settings.pool_size,
                notify_within=settings.notify_in_transaction,
                lock_classes=settings.lock_classes,
            )
        case other:
            assert_never(other)


def make_delivery(settings: Settings, store: Store) -> Delivery:
    if scheme_of(settings.database_url.strip()) == "sqlite":  # imported only where it is used: it is large
        from dutiful.stores.sqlite import SqliteStore

        assert isinstance(store, SqliteStore)
        return InProcessDelivery(FileChanges(store.data_version, written=store.wal_path, signal=store.turn_path))
    from dutiful.delivery.postgres import PostgresDelivery
    from dutiful.stores.postgres import PostgresStore

    assert isinstance(store, PostgresStore)
    direct = settings.direct_url is not None or not store.pooled
    return PostgresDelivery(settings.schema, store.notify, store.connect_direct if direct else None)


def make_backend(settings: Settings, store: Store) -> QueueBackend:
    """What delivers jobs: Arq on Redis, or the store itself."""
    if settings.redis_url is None:
        return StoreBackend(store)
    if settings.redis_url.strip() == WITHHELD:
        # A process of a job enqueues all the same: the maintenance service delivers.
        return StoreBackend(store)
    try:
        from dutiful.delivery.arq import ArqBackend
    except ImportError as error:
        raise UsageError(f"setting redis_url needs an extra ({error}): pip install 'dutiful[arq]'") from error
    return ArqBackend(settings.redis_url, store, settings.redis_prefix)


def make_tracer(settings: Settings) -> "Tracer | None":
    if not settings.tracing:
        return None
    try:
        from dutiful.observe.tracing import Tracer
    except ImportError as error:
        raise UsageError(f"setting tracing needs an extra ({error}): pip install 'dutiful[otel]'") from error
    return Tracer()


def make_worker(
    app: Registry,
    client: Client,
    *,
    services: bool = True,
    worker_id: UUID | None = None,
    embedded: bool = False,
    inbox: "Inbox | None" = None,
) -> "Worker":
    """A worker on an open client; `await worker.run()` until `worker.stop()`.

    If it is `embedded`, its process outlives it, and so do handlers that could not be stopped. With an `inbox`, it runs
    only the jobs whose ids are delivered there. An id comes from a supervisor, which starts another process when this
    one ends.
    """
    # Imported here, because a process that only enqueues needs none of it.
    from dutiful.maintenance.alerts import AlertChecker
    from dutiful.maintenance.deliveries import Redelivery
    from dutiful.maintenance.dependents import Releaser
    from dutiful.maintenance.limits import Admitter
    from dutiful.maintenance.promotion import Gates, Promoter
    from dutiful.maintenance.rescuer import Rescuer
    from dutiful.maintenance.reviewer import Reviewer
    from dutiful.maintenance.rollup import Rollup
    from dutiful.maintenance.runner import MaintenanceRunner
    from dutiful.maintenance.scheduler import Scheduler
    from dutiful.maintenance.sealer import Sealer
    from dutiful.maintenance.waits import EventDelivery
    from dutiful.maintenance.webhooks.sender import WebhookSender
    from dutiful.observe.measure import measure
    from dutiful.observe.outage import OutageLog
    from dutiful.worker.config import WorkerConfig, select_kinds
    from dutiful.worker.counters import AttemptCounters
    from dutiful.worker.worker import Worker

    store, settings, notify = client.store, app.settings, client.delivery.notify_watchers
    store.check_worker()
    opening.debug("retry policies of %d kinds", len(app.kinds))
    counters, outages = AttemptCounters() if settings.metrics else None, OutageLog()
    rescuer = Rescuer(store, app.kinds, on_rescue=None if counters is None else counters.rescued)
    admitter = Admitter(store.limits)
    gates: list[Service] = [Promoter(store), rescuer, Gates(store), admitter, EventDelivery(store.steps)]
    fast = [*gates, Scheduler(store, app.new_id, client.tracer)]
    declared = [spec.record for spec in app.webhooks.values()]
    sender = WebhookSender(
        store.webhooks, declared, lambda: _make_http(settings), app.webhook_secrets, settings.webhook_timeout, notify
    )
    reviewer = Reviewer(store.dead_letters, app.kinds, client.delivery.hint, client.tracer)
    slow: list[Service] = [make_retention(app, client), sender, reviewer, Sealer(store.audit), Rollup(store.metrics)]
    redelivery = None if client.dispatcher is None else Redelivery(store.deliveries, client.dispatcher)
    if redelivery is not None:
        slow.append(redelivery)
    check_names(settings.alerts_off, app.alerts)
    rules = app.alert_rules()
    if unmeasured := ", ".join(name for name, rule in rules.items() if rule.unmeasured):
        alerting.warning(
            "setting metrics is off: this worker does not count its attempts, so these alerts do not see them: %s",
            unmeasured,
        )

    watched = (rule.where.get("queue") for rule in rules.values())
    queues = {*(kind.queue for kind in app.kinds.values()), *filter(None, watched)}

    async def measured(now: datetime) -> "list[Sample]":
        return await measure(store, now=now, broker=redelivery is not None, queues=queues)

    slow.append(AlertChecker(store.alerts, rules, measured, settings.alert_interval))
    runner = MaintenanceRunner(
        store,
        fast,
        slow,
        client.delivery,
        app.schedule_records,
        rescuer,
        sender,
        app.payload_rules(),
        app.kind_defaults(),
        Patience.with_lease(settings.lease),
        outages,
        followers=[] if redelivery is None else [redelivery],
        admitter=admitter if any(kind.limits for kind in app.kinds.values()) else None,
        releaser=Releaser(store.dependents),
        redelivery=redelivery,
    )
    config = WorkerConfig(
        worker_id=worker_id or app.new_id(),
        store=store,
        delivery=client.delivery,
        settings=settings,
        kinds=select_kinds(app.kinds, settings.kinds),
        resources=app.resources,
        breakers=app.breaker_policies(),
        breaker_kinds=app.breaker_kinds(),
        limits=app.kind_limits(),
        maintenance=runner if services else None,
        outages=outages,
        counters=counters,
        tracer=client.tracer,
        key_ring=app.key_ring,
        inbox=inbox,
        supervised=worker_id is not None,
        make_store=(lambda: make_store(settings)) if embedded else None,
    )
    worker = Worker(config)
    opening.debug("worker made")
    opening.debug("webhooks: %s", ", ".join(app.webhooks) or "none but jobs' own")
    return worker


def make_sql_worker(settings: Settings, channels: "Channels", config: "SqlWorkerConfig") -> "SqlWorker":
    """A worker that uses only published functions; `await worker.run()` until `worker.stop()`."""
    url = settings.database_url.strip()
    if scheme_of(url) != "postgresql":
        raise UsageError("a SQL worker needs Postgres: set database_url to postgresql://user@host/database")
    try:
        from dutiful.channels.database import ChannelDatabase
        from dutiful.channels.sql_worker import SqlWorker
    except ImportError as error:
        raise UsageError(f"Postgres needs an extra ({error}): pip install 'dutiful[postgres]'") from error
    direct_url = None if settings.direct_url is None else settings.direct_url.strip()
    if direct_url is not None:
        redacted_url(direct_url, "direct_url")
    database = ChannelDatabase(
        url,
        settings.schema,
        direct_dsn=direct_url,
        pool_size=settings.pool_size,
        statement_timeout=config.handler_timeout,
    )
    return SqlWorker(config, database, channels)


def make_retention(app: Registry, client: Client) -> "Retention":
    from dutiful.maintenance.retention import Retention

    return Retention(
        client.store,
        app.settings.retention,
        app.settings.stale_after,
        on_stale=app.stale_callbacks,
        on_delete=app.delete_callbacks,
        notify=client.delivery.notify_watchers,
    )


def _make_http(settings: Settings) -> "WebhookHttp":
    try:
        from dutiful.maintenance.webhooks.http import WebhookHttp
    except ImportError as error:
        raise UsageError(f"webhooks need an extra ({error}): pip install 'dutiful[webhooks]'") from error
    from dutiful.maintenance.webhooks.address_guard import AddressGuard

    return WebhookHttp(AddressGuard(settings.webhook_networks), settings.webhook_timeout.total_seconds())
