"""The one door for people: what they look at and what they do, each as somebody, within a tenant, on record."""

from dutiful.operator.bulk import Preview
from dutiful.operator.dead_letters import Reprocessed
from dutiful.operator.door import os_user
from dutiful.operator.jobs import Retried
from dutiful.operator.operator import Operator
from dutiful.operator.trail import Break, Verified

__all__ = ["Break", "Operator", "Preview", "Reprocessed", "Retried", "Verified", "os_user"]
