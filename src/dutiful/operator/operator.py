"""The operations of a principal, by subject."""

from collections.abc import Mapping
from typing import Any

from dutiful.client.client import Client
from dutiful.core.breaker.state import BreakerPolicy
from dutiful.core.metrics.alert import AlertRule
from dutiful.core.principal import Principal
from dutiful.kind import Kind
from dutiful.operator.actor import Actor
from dutiful.operator.alerts import Alerts
from dutiful.operator.audit import Audit
from dutiful.operator.breakers import Breakers
from dutiful.operator.bulk import Bulk
from dutiful.operator.dead_letters import DeadLetters
from dutiful.operator.deliveries import Deliveries
from dutiful.operator.encryption import Encryption
from dutiful.operator.fleet import Fleet
from dutiful.operator.jobs.jobs import Jobs
from dutiful.operator.limits import Limits
from dutiful.operator.metrics import Metrics
from dutiful.operator.queues import Queues
from dutiful.operator.schedules import Schedules
from dutiful.operator.sent_events import SentEvents
from dutiful.operator.shares import Shares
from dutiful.operator.supervisors import Supervisors
from dutiful.operator.tenants import Tenants
from dutiful.operator.tokens import Tokens
from dutiful.operator.trace import Trace
from dutiful.operator.trees import Trees
from dutiful.operator.webhooks import Webhooks


class Operator:
    """What one `principal` can look at and do, by subject; by default the user of this process.

    A principal with a tenant sees nothing of other tenants. Every action is audited when it is requested and when it
    has ended.
    """

    def __init__(
        self,
        client: Client,
        principal: Principal | str | None = None,
        kinds: Mapping[str, Kind[Any, Any]] | None = None,
        alert_rules: Mapping[str, AlertRule] | None = None,
        breaker_policies: Mapping[str, BreakerPolicy] | None = None,
    ) -> None:
        self.actor = actor = Actor(client, principal, kinds, alert_rules, breaker_policies)
        self.queues = Queues(actor)
        self.dead_letters = DeadLetters(actor)
        self.bulk = Bulk(actor, self.dead_letters)
        self.jobs = Jobs(actor, self.dead_letters, self.queues)
        self.trace = Trace(actor, self.jobs)
        self.sent_events = SentEvents(actor)
        self.trees = Trees(actor, self.trace)
        self.fleet = Fleet(actor)
        self.deliveries = Deliveries(actor)
        self.schedules = Schedules(actor)
        self.webhooks = Webhooks(actor)
        self.breakers = Breakers(actor)
        self.limits = Limits(actor)
        self.shares = Shares(actor)
        self.encryption = Encryption(actor)
        self.metrics = Metrics(actor)
        self.alerts = Alerts(actor)
        self.tokens = Tokens(actor)
        self.tenants = Tenants(actor)
        self.supervisors = Supervisors(actor)
        self.audit = Audit(actor)

    @property
    def principal(self) -> Principal:
        return self.actor.principal

    @property
    def tenant(self) -> str | None:
        return self.actor.tenant
