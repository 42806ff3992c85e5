"""Proves the laws of storage, or says in words where they are broken."""

from dutiful.core.ids import public
from dutiful.stores.sqlite.codec import uuid
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sql import SQL


def check_places(db: Connection) -> list[str]:
    breaches = [
        f"job {_name(job_id)} stands in {'no place' if found is None else found}"
        for job_id, found in db.rows(SQL["places_of_jobs"])
    ]
    breaches += [
        f"{place} has a row for {_name(job_id)}, which is no job"
        for place, job_id in db.rows(SQL["places_without_job"])
    ]
    breaches += [
        f"the unique key {key!r} (tenant {tenant!r}, kind {kind!r}) is still held as {scope} by {_name(job_id)}"
        for tenant, kind, key, scope, job_id in db.rows(SQL["orphan_keys"])
    ]
    for job_id, needs_id, does_not_wait, is_missing in db.rows(SQL["orphan_dependencies"]):
        if does_not_wait:
            breaches.append(f"a dependency is kept for {_name(job_id)}, which does not wait for any")
        if is_missing:
            breaches.append(f"{_name(job_id)} waits for {_name(needs_id)}, which is no job")
    breaches += [
        f"a dead letter is kept for {_name(job_id)}, which is {state or 'not final'}"
        for job_id, state in db.rows(SQL["dead_letters_of_the_living"])
    ]
    breaches += [
        f"job {_name(job_id)} failed without a dead letter" for (job_id,) in db.rows(SQL["failed_without_dead_letter"])
    ]
    breaches += [
        f"one half of the dead letter of {_name(job_id)} is missing"
        for (job_id,) in db.rows(SQL["dead_letters_without_body"])
    ]
    breaches += [
        f"the dead letter of {_name(job_id)} is {status} {'with' if has_job else 'without'} a new job"
        for job_id, status, has_job in db.rows(SQL["reprocessing_without_job"])
    ]
    breaches += [
        f"job {_name(job_id)} stands for more than one dead letter" for (job_id,) in db.rows(SQL["reprocessed_twice"])
    ]
    breaches += [
        f"audit event {uuid(id_)} is neither sealed nor waits for its seal, or both"
        for (id_,) in db.rows(SQL["events_without_seal"])
    ]
    breaches += [f"the audit event of seal {seq} has been deleted" for (seq,) in db.rows(SQL["seals_without_event"])]
    breaches += [
        f"attempts are kept of {_name(job_id)}, which is no job" for (job_id,) in db.rows(SQL["attempts_without_job"])
    ]
    breaches += [
        f"{what} is kept of {_name(job_id)}, which is no job" for what, job_id in db.rows(SQL["belongings_without_job"])
    ]
    return breaches


def _name(job_id: bytes) -> str:
    return f"{public(uuid(job_id))} ({uuid(job_id)})"
