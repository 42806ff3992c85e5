"""All that one principal may look at and do."""

from dutiful.operator.alerts import Alerts
from dutiful.operator.breakers import Breakers
from dutiful.operator.bulk import Bulk
from dutiful.operator.deleting import Deleting
from dutiful.operator.draining import Draining
from dutiful.operator.enqueueing import Enqueueing
from dutiful.operator.metrics import Metrics
from dutiful.operator.releasing import Releasing
from dutiful.operator.tokens import Tokens
from dutiful.operator.tracing import Tracing
from dutiful.operator.trail import Trail


class Operator(Enqueueing, Releasing, Bulk, Deleting, Draining, Breakers, Metrics, Tokens, Tracing, Trail, Alerts):
    """The reads and acts of one `principal`; by default the user of this process.

    With a tenant, nothing of another one exists for them. Every act leaves an event when it is asked for and one when
    it has ended, whichever way.
    """
