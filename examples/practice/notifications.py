"""Notifications by mail, or in the application."""

import smtplib
from email.message import EmailMessage

from dutiful import Context, Inject
from examples.practice.platform import Platform


def notification_email_send(ctx: Context, notification_id: int, platform: Platform = Inject("platform")) -> None:
    """Sends a mail; a duplicate has the same Message-ID."""
    scope = platform.scope(ctx)
    row = scope.get("notification", id=notification_id)
    if row["sent"]:
        return
    message = EmailMessage()
    message["Message-ID"] = f"<notification-{notification_id}@firm-{scope.firm.id}.example>"
    message["From"] = f"office@firm-{scope.firm.id}.example"
    message["To"] = row["address"]
    message["Subject"] = row["subject"]
    message.set_content(row["body"])
    with smtplib.SMTP("127.0.0.1", platform.addresses.smtp_port, timeout=10) as server:
        server.send_message(message)
    scope.firm.run("notification_sent", id=notification_id)


def notification_inapp_create(ctx: Context, notification_id: int, platform: Platform = Inject("platform")) -> None:
    scope = platform.scope(ctx)
    scope.get("notification", id=notification_id)
    scope.firm.run("add_to_inbox", id=notification_id)
