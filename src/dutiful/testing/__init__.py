"""For tests of applications that use Dutiful: move time, run due jobs, assert what was enqueued.

    clock = testing.Clock()
    async with testing.app_on(app, clock=clock) as kit:
        await sign_up("ada@example.org")
        await kit.assert_enqueued(send_email, to="ada@example.org")
        await kit.drain(advance=True)                       # through all retries and delays

    with testing.inline(app):
        sign_up_sync("ada@example.org")                     # its jobs have run when this returns

It works with any test framework.
"""

from dutiful.testing.backend import InProcessBackend
from dutiful.testing.clock import Clock, ClockedStore
from dutiful.testing.drain import RanAttempt
from dutiful.testing.inline import inline
from dutiful.testing.kit import Kit, app_on

__all__ = ["Clock", "ClockedStore", "InProcessBackend", "Kit", "RanAttempt", "app_on", "inline"]
