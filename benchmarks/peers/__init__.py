"""The systems that can be measured; each is imported only when it takes part."""

from __future__ import annotations

import importlib
from typing import cast

from benchmarks.peer import Peer

_PEERS = {
    "dutiful": "dutiful_peer:POSTGRES",
    "raw": "raw_peer:PEER",
    "pgqueuer": "pgqueuer_peer:PEER",
    "procrastinate": "procrastinate_peer:PEER",
    "awa": "awa_peer:PEER",
    "graphile": "node_peer:GRAPHILE",
    "pg-boss": "node_peer:PGBOSS",
    "oban": "oban_peer:PEER",
    "dutiful-sqlite": "dutiful_peer:SQLITE",
    "huey": "huey_peer:UNSYNCED",
    "huey-full": "huey_peer:SYNCED",
}

NAMES = tuple(_PEERS)


def load(name: str) -> Peer | str:
    """The peer, or why it cannot be measured here."""
    module, _, attribute = _PEERS[name].partition(":")
    try:
        return cast(Peer, getattr(importlib.import_module(f"benchmarks.peers.{module}"), attribute))
    except (ImportError, AttributeError) as error:
        return str(error)
