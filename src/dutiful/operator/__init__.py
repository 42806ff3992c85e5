"""Operators' reads and actions, limited by role and tenant; each action is audited."""

from dutiful.operator.actor import os_user
from dutiful.operator.audit import Break, Verified
from dutiful.operator.bulk import Preview
from dutiful.operator.dead_letters import Reprocessed
from dutiful.operator.jobs.retry import Retried
from dutiful.operator.operator import Operator

__all__ = ["Break", "Operator", "Preview", "Reprocessed", "Retried", "Verified", "os_user"]
