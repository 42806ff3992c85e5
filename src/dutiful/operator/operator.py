"""All that one principal may look at and do."""

from dutiful.operator.bulk import Bulk
from dutiful.operator.enqueueing import Enqueueing
from dutiful.operator.failing import Failing
from dutiful.operator.fleet import Fleetwide
from dutiful.operator.tokens import Tokens
from dutiful.operator.trail import Trail


class Operator(Enqueueing, Failing, Bulk, Fleetwide, Tokens, Trail):
    """The reads and acts of one `principal`; by default the user of this process.

    With a tenant, nothing of another one exists for them. Every act leaves an event when it is asked for and one when
    it has ended, whichever way.
    """
