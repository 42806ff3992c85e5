"""Composition: jobs that are enqueued together, and run in an order."""

from dutiful.workflow.call import PREVIOUS, Call
from dutiful.workflow.graph import Node, Workflow
from dutiful.workflow.shapes import Chain, Group, chain, group

__all__ = ["PREVIOUS", "Call", "Chain", "Group", "Node", "Workflow", "chain", "group"]
