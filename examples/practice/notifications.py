"""People are told: by mail, or in the application."""

import smtplib
from email.message import EmailMessage

from dutiful import Context, Inject
from examples.practice.office import Office


def notification_email_send(ctx: Context, notification_id: int, office: Office = Inject("office")) -> None:
    """Hand it to the mail server; if it comes twice, its Message-ID tells."""
    desk = office.desk(ctx)
    row = desk.get("notification", id=notification_id)
    if row["sent"]:
        return
    message = EmailMessage()
    message["Message-ID"] = f"<notification-{notification_id}@firm-{desk.firm.id}.example>"
    message["From"] = f"office@firm-{desk.firm.id}.example"
    message["To"] = row["address"]
    message["Subject"] = row["subject"]
    message.set_content(row["words"])
    with smtplib.SMTP("127.0.0.1", office.addresses.smtp_port, timeout=10) as server:
        server.send_message(message)
    desk.firm.run("notification_sent", id=notification_id)


def notification_inapp_create(ctx: Context, notification_id: int, office: Office = Inject("office")) -> None:
    desk = office.desk(ctx)
    desk.get("notification", id=notification_id)
    desk.firm.run("add_to_inbox", id=notification_id)
