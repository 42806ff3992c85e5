"""Event streams of jobs: one reader for all subscribers of a process."""

from dutiful.events.items import Gap, Item, Snapshot, Subscription
from dutiful.events.stream import EventStream
from dutiful.events.watcher import Watcher

__all__ = ["EventStream", "Gap", "Item", "Snapshot", "Subscription", "Watcher"]
