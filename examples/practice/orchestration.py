"""A workflow: each step is a job, which at its end enqueues the next one.

A failed step is retried by the same error classes as any other job.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from dutiful import Context, Inject
from examples.practice.firms import Row
from examples.practice.platform import FirmScope, NotThere, Platform

Step = Callable[[FirmScope, Row], Awaitable[None]]


async def orchestration_step_execute(
    ctx: Context, execution_id: int, step: int, platform: Platform = Inject("platform")
) -> dict[str, Any]:
    scope = platform.scope(ctx)
    execution = scope.get("execution", id=execution_id)
    if not 0 <= step < len(ONBOARDING):
        raise NotThere(f"execution {execution_id} has no step {step}: the first is 0, the last {len(ONBOARDING) - 1}")
    if execution["done"] <= step:
        await ONBOARDING[step](scope, scope.get("client", id=execution["client_id"]))
        scope.firm.run("step_done", id=execution_id, step=step)
    following = step + 1
    if following < len(ONBOARDING):
        key = f"execution_{execution_id}_step_{following}"
        await scope.follow_up("orchestration_step_execute", key, execution_id=execution_id, step=following)
    return {"step": ONBOARDING[step].__name__}


async def open_file(scope: FirmScope, client: Row) -> None:
    folder = scope.firm.folder / "clients" / str(client["id"])
    folder.mkdir(parents=True, exist_ok=True)


async def send_welcome(scope: FirmScope, client: Row) -> None:
    notification = _notification(scope, client["address"], "Welcome", f"Dear {client['name']}, your file is open.")
    key = f"email_send_notification_{notification}"
    await scope.follow_up("notification_email_send", key, notification_id=notification)


async def notify_team(scope: FirmScope, client: Row) -> None:
    notification = _notification(scope, "team", f"New client {client['id']}", f"{client['name']} is on board.")
    key = f"inapp_create_notification_{notification}"
    await scope.follow_up("notification_inapp_create", key, notification_id=notification)


ONBOARDING: tuple[Step, ...] = (open_file, send_welcome, notify_team)


def _notification(scope: FirmScope, address: str, subject: str, body: str) -> int:
    """Returns the same id if the step is retried."""
    scope.firm.run("add_notification", address=address, subject=subject, body=body)
    return int(scope.get("notification_of", address=address, subject=subject)["id"])
