"""What class of trouble an error is, for jobs and for the steps of workflows alike."""

import smtplib
from dataclasses import replace

from dutiful import ErrorClass, Retry
from examples.practice.categories import MAX_ATTEMPTS


def classify_error(error: BaseException) -> ErrorClass | None:
    """Replies of mail servers, which Dutiful does not know; None leaves the rest to it."""
    match error:
        case smtplib.SMTPRecipientsRefused():
            codes = [code for code, _ in error.recipients.values()]
        case smtplib.SMTPResponseException():
            codes = [error.smtp_code]
        case _:
            return None
    return ErrorClass.NON_RETRYABLE if codes and min(codes) >= 500 else ErrorClass.TRANSIENT


# 2, 4, 8, 16 s between attempts, or 60, 120, 240 s when asked to slow down; a fifth more or less, at most five minutes.
RETRY = replace(Retry.named("patient", max_attempts=MAX_ATTEMPTS), classify=classify_error)
