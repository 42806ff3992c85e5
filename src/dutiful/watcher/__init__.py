"""Watching jobs: one reader for all subscribers of a process."""

from dutiful.watcher.items import Gap, Item, Snapshot, Wanted
from dutiful.watcher.stream import EventStream
from dutiful.watcher.watcher import Watcher

__all__ = ["EventStream", "Gap", "Item", "Snapshot", "Wanted", "Watcher"]
