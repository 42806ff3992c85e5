"""A workflow, step by step: each step is a job, and the last thing it does is to ask for the next one.

A step that fails goes by the same error classes as any other job.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from dutiful import Context, Inject
from examples.practice.firms import Row
from examples.practice.office import Desk, Office

Step = Callable[[Desk, Row], Awaitable[None]]


async def orchestration_step_execute(
    ctx: Context, execution_id: int, step: int, office: Office = Inject("office")
) -> dict[str, Any]:
    desk = office.desk(ctx)
    execution = desk.get("execution", id=execution_id)
    if execution["done"] <= step:
        await ONBOARDING[step](desk, desk.get("client", id=execution["client_id"]))
        desk.firm.run("step_done", id=execution_id, step=step)
    following = step + 1
    if following < len(ONBOARDING):
        key = f"execution_{execution_id}_step_{following}"
        await desk.follow_up("orchestration_step_execute", key, execution_id=execution_id, step=following)
    return {"step": ONBOARDING[step].__name__}


async def open_file(desk: Desk, client: Row) -> None:
    folder = desk.firm.folder / "clients" / str(client["id"])
    folder.mkdir(parents=True, exist_ok=True)


async def send_welcome(desk: Desk, client: Row) -> None:
    notification = _notification(desk, client["address"], "Welcome", f"Dear {client['name']}, your file is open.")
    key = f"email_send_notification_{notification}"
    await desk.follow_up("notification_email_send", key, notification_id=notification)


async def tell_the_team(desk: Desk, client: Row) -> None:
    notification = _notification(desk, "team", f"New client {client['id']}", f"{client['name']} is on board.")
    key = f"inapp_create_notification_{notification}"
    await desk.follow_up("notification_inapp_create", key, notification_id=notification)


ONBOARDING: tuple[Step, ...] = (open_file, send_welcome, tell_the_team)


def _notification(desk: Desk, address: str, subject: str, words: str) -> int:
    """The same one if the step is tried again."""
    desk.firm.run("add_notification", address=address, subject=subject, words=words)
    return int(desk.get("notification_of", address=address, subject=subject)["id"])
