"""Builds the services, and gives each the queue, store and edge that it needs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2

from examples.docverse.config import Config
from examples.docverse.database import Database
from examples.docverse.git_refs import GitRepositories
from examples.docverse.ports import ObjectStore
from examples.docverse.services.build_processing import BuildProcessing
from examples.docverse.services.credentials import CredentialEncryptor, Credentials
from examples.docverse.services.dashboard_sync import DashboardSync, TemplateService
from examples.docverse.services.dashboards import DashboardService, MetadataWriter
from examples.docverse.services.deletion import DeletionService
from examples.docverse.services.edges import EdgeFor, Edges
from examples.docverse.services.edition_update import EditionUpdate
from examples.docverse.services.editions import EditionService
from examples.docverse.services.hosting import HostingService, QueueIn
from examples.docverse.services.inventory import InventoryService
from examples.docverse.services.lifecycle import LifecycleService
from examples.docverse.services.purgatory import PurgatoryService
from examples.docverse.services.reencryption import Reencryption
from examples.docverse.services.ref_audit import RefAudit
from examples.docverse.services.tracking import TrackingService
from examples.docverse.storage.edge_client import EdgeClient
from examples.docverse.storage.object_store import DirectoryObjectStore


@dataclass(frozen=True)
class Docverse:
    """Everything that the API and the jobs use."""

    config: Config
    database: Database
    objects: ObjectStore
    repositories: GitRepositories
    encryptor: CredentialEncryptor
    credentials: Credentials
    edges: Edges
    hosting: HostingService
    dashboards: DashboardService
    build_processing: BuildProcessing
    edition_update: EditionUpdate
    templates: TemplateService
    dashboard_sync: DashboardSync
    lifecycle: LifecycleService
    ref_audit: RefAudit
    purgatory: PurgatoryService
    reencryption: Reencryption


@asynccontextmanager
async def open_docverse(
    config: Config, queue_in: QueueIn, *, objects: ObjectStore | None = None, edge_for: EdgeFor | None = None
) -> AsyncIterator[Docverse]:
    """Opens the host; tests give it a store and an edge that are slow or fail."""
    async with (
        Database.opened(config.database_url) as database,
        httpx2.AsyncClient(timeout=30, trust_env=False) as http,
    ):
        objects = objects or DirectoryObjectStore(config.objects)
        encryptor = CredentialEncryptor(config.fernet_keys)
        credentials = Credentials(database, encryptor)
        edges = Edges(credentials, edge_for or (lambda org, token: EdgeClient(http, config.edge_url, org, token)))
        metadata = MetadataWriter(database, objects, edges, config.edge_url)
        dashboards = DashboardService(database, objects, edges, metadata, config.edge_url)
        editions = EditionService(database, objects, edges, metadata)
        repositories = GitRepositories(config.repositories)
        deletion = DeletionService(database, objects, edges)
        yield Docverse(
            config=config,
            database=database,
            objects=objects,
            repositories=repositories,
            encryptor=encryptor,
            credentials=credentials,
            edges=edges,
            hosting=HostingService(database, objects, queue_in, credentials),
            dashboards=dashboards,
            build_processing=BuildProcessing(
                database, InventoryService(database, objects), TrackingService(database), editions, dashboards
            ),
            edition_update=EditionUpdate(database, editions, dashboards),
            templates=TemplateService(database, queue_in),
            dashboard_sync=DashboardSync(database, objects, repositories, dashboards),
            lifecycle=LifecycleService(database, deletion, dashboards),
            ref_audit=RefAudit(database, repositories, deletion, dashboards),
            purgatory=PurgatoryService(database, objects),
            reencryption=Reencryption(database, encryptor),
        )
