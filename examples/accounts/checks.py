"""The checklist: what must be true after each chapter, as sentences with their answers."""

from typing import Any

from examples.accounts.sample_data import Account
from examples.accounts.services import Services

Checklist = dict[str, bool]
EMAIL_FACTS = """
    select count(*), count(s), count(f), count(distinct d) from comms.email_message m
    join comms.send_email_task t using (email_message_id)
    join comms.send_email_attempt a using (send_email_task_id)
    left join comms.send_email_attempt_succeeded s using (send_email_attempt_id)
    left join comms.send_email_attempt_failed f using (send_email_attempt_id)
    left join comms.send_email_task_failed d using (send_email_task_id)
    where m.to_address = $1
"""
SMS_FACTS = EMAIL_FACTS.replace("email", "sms").replace("to_address", "to_number")
METADATA = "select metadata @> '{\"deleted\": true}' from files.file_metadata where file_id = any($1)"
RECORDINGS = "select count(*) from learning.profile_cue_recording r where r.file_id = any($1)"
FLAGS = "select flag from accounts.account_flag where account_id = $1 order by flag"
TASKS = "select account_deletion_task_id from accounts.account_deletion_task where account_id = $1"
SUCCEEDED = "select count(*) from accounts.account_deletion_task_succeeded where account_deletion_task_id = any($1)"
FAILED = "select error_message from accounts.account_deletion_task_failed where account_deletion_task_id = any($1)"
FILE_TASKS = "select count(*) from files.file_deletion_task where file_id = any($1)"
FILE_SUCCESSES = """
    select count(*) from files.file_deletion_task t
    join files.file_deletion_task_succeeded s using (file_deletion_task_id)
    where t.file_id = any($1)
"""
FILE_FAILURES = FILE_SUCCESSES.replace("_task_succeeded", "_task_failed")
FILE_STUCK = "select files.is_file_deletion_stuck(f) from unnest($1::bigint[]) f"
ANONYMIZATION_FAILURES = """
    select count(*) from accounts.account_anonymization_task t
    join accounts.account_anonymization_task_failed f using (account_anonymization_task_id)
    where t.account_id = $1
"""
UNLOGGED = """
    select count(*) from (
        select a.task_id from comms.send_email_attempt a
        join comms.send_email_attempt_failed using (send_email_attempt_id)
        union all
        select a.job_id from comms.send_sms_attempt a
        join comms.send_sms_attempt_failed using (send_sms_attempt_id)
        union all
        select a.task_id from files.file_deletion_attempt a
        join files.file_deletion_attempt_failed using (file_deletion_attempt_id)
    ) f where not exists (select 1 from queues.error e where e.task_id = f.task_id and e.error_message <> '')
"""
PERSON = """
    select a.email_address is null and a.phone_number is null and p.display_name = 'someone'
    from accounts.account a join accounts.profile p using (account_id) where a.account_id = $1
"""


async def _column(db: Any, query: str, *args: Any) -> list[Any]:
    return [row[0] for row in await db.fetch(query, *args)]


async def messages(db: Any, services: Services, addresses: tuple[str, str, str], numbers: tuple[str, str]) -> Checklist:
    """Attempts, successes, failures and ends, of each message."""
    emails = [tuple(await db.fetchrow(EMAIL_FACTS, address)) for address in addresses]
    texts = [tuple(await db.fetchrow(SMS_FACTS, number)) for number in numbers]
    mails = [str(mail["To"]) for mail in services.mails]
    return {
        "a mail arrived at the first attempt": emails[0] == (1, 1, 0, 0) and mails.count(addresses[0]) == 1,
        "a mail arrived at the second attempt, because its mailbox was busy": emails[1] == (2, 1, 1, 0)
        and mails.count(addresses[1]) == 1,
        "a mail was given up after three attempts": emails[2] == (3, 0, 3, 1) and addresses[2] not in mails,
        "a text arrived, with a key that names its task": texts[0] == (1, 1, 0, 0)
        and [text["to_number"] for text in services.texts if text["key"]] == [numbers[0]],
        "a text was given up after three attempts": texts[1] == (3, 0, 3, 1),
    }


async def happy_path(db: Any, services: Services, account: Account) -> Checklist:
    files, number = list(account.files), len(account.files)
    tasks = await _column(db, TASKS, account.account_id)
    return {
        "the account had recordings with files": number > 0 and await db.fetchval(RECORDINGS, files) == number,
        "two requests made one deletion task": len(tasks) == 1,
        "each file has a deletion task and its success": await db.fetchval(FILE_TASKS, files) == number
        and await db.fetchval(FILE_SUCCESSES, files) == number,
        "each file is marked as deleted": await _column(db, METADATA, files) == [True] * number,
        "the object store has none of them": not any(
            key.startswith(f"account-{account.account_id}/") for key in services.buckets["recordings"]
        ),
        "the account is flagged as deleted and anonymised": await _column(db, FLAGS, account.account_id)
        == ["anonymized", "deleted"],
        "nothing identifies the person": bool(await db.fetchval(PERSON, account.account_id)),
        "the deletion has succeeded, once": await db.fetchval(SUCCEEDED, tasks) == 1
        and await _column(db, FAILED, tasks) == [],
    }


async def file_stuck(db: Any, account: Account) -> Checklist:
    files, number = list(account.files), len(account.files)
    tasks = await _column(db, TASKS, account.account_id)
    messages = await _column(db, FAILED, tasks)
    return {
        "each file has three failed attempts": await db.fetchval(FILE_FAILURES, files) == 3 * number,
        "each file is stuck": await _column(db, FILE_STUCK, files) == [True] * number,
        "the deletion has failed, once, and names the file": len(messages) == 1
        and messages[0].startswith(f"file {files[0]} was not deleted after 3 attempts: "),
        "the account is not anonymised": await _column(db, FLAGS, account.account_id) == ["deleted"],
        "the deletion did not succeed": await db.fetchval(SUCCEEDED, tasks) == 0,
    }


async def anonymisation_stuck(db: Any, account: Account) -> Checklist:
    tasks = await _column(db, TASKS, account.account_id)
    messages = await _column(db, FAILED, tasks)
    wanted = f"the account was not anonymised after 3 attempts: account {account.account_id} is under legal hold"
    return {
        "the files of the held account are deleted": await _column(db, METADATA, list(account.files))
        == [True] * len(account.files),
        "its anonymisation has three failed attempts": await db.fetchval(ANONYMIZATION_FAILURES, account.account_id)
        == 3,
        "its anonymisation is stuck": await db.fetchval(
            "select accounts.is_account_anonymization_stuck($1)", account.account_id
        ),
        "its deletion has failed, once, and says why": messages == [wanted],
        "it is as it was": await _column(db, FLAGS, account.account_id) == ["deleted", "legal_hold"]
        and not await db.fetchval(PERSON, account.account_id),
    }


async def crash(db: Any, services: Services, message: int, address: str, twice: str) -> Checklist:
    mails = [str(mail["Message-ID"]) for mail in services.mails if mail["To"] == address]
    leases = await db.fetch(
        """
        select l.leased_at, l.expires_at from comms.send_email_attempt a
        join comms.send_email_task t using (send_email_task_id)
        join queues.task_lease l using (task_id)
        where t.email_message_id = $1 order by l.leased_at""",
        message,
    )
    return {
        "the mail was sent twice, under one message id": len(mails) == 2 and len(set(mails)) == 1,
        "its facts are recorded once": tuple(await db.fetchrow(EMAIL_FACTS, address)) == (1, 1, 0, 0),
        "both claims are on record, the second after the end of the first": len(leases) == 2
        and leases[0]["expires_at"] <= leases[1]["leased_at"],
        "many checks of one message, by two workers, made one attempt": tuple(await db.fetchrow(EMAIL_FACTS, twice))
        == (1, 1, 0, 0)
        and [mail["To"] for mail in services.mails].count(twice) == 1,
    }


async def queue(db: Any) -> Checklist:
    """What holds for all tasks, whatever came of them."""
    tasks = await db.fetchval("select count(*) from queues.task")
    completed = await db.fetchval("select count(*) from queues.task join queues.task_completed using (task_id)")
    states = set(await _column(db, "select distinct state from dutiful.jobs"))
    repeated = await db.fetchval("""
        select count(*) from (select task_id from queues.task_lease group by task_id having count(*) > 1) l""")
    return {
        "every task is completed, those with errors, too": tasks == completed > 0
        and states == {"completed", "completed_with_errors"},
        "no task was run twice, but that of the crash": repeated == 1,
        "every failed attempt of a channel is in the error log": await db.fetchval(UNLOGGED) == 0,
        "the storage is consistent": await _column(db, "select violation from dutiful.misplaced") == [],
    }
