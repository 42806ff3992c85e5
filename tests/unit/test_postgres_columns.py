"""The columns of the Postgres store are the fields of what it stores."""

import re

from dutiful.core.job import Claim, NewJob
from dutiful.core.settle import Change
from dutiful.stores.postgres import schema_files
from dutiful.stores.postgres.engine.columns import (
    CHANGE,
    FRAGMENTS,
    JOB,
    MOST_FIELDS,
    TIMES,
    Columns,
    job_arrays,
    spell_lists,
)
from dutiful.stores.postgres.engine.sql import statements
from suite.builders import new_job


def names(columns: Columns) -> list[str]:
    return [column.name for column in columns]


def test_every_field_of_a_job_has_a_column_or_a_table_of_its_own() -> None:
    assert {*names(JOB), *names(TIMES), "unique", "inherits", "depends_on", "policies", "joins"} == set(
        NewJob.__struct_fields__
    )


def test_a_claim_and_a_change_are_read_and_written_in_the_order_of_their_fields() -> None:
    assert FRAGMENTS["claim_columns"].split(", ") == list(Claim.__struct_fields__)
    assert names(CHANGE) == list(Change.__struct_fields__)


def test_every_column_of_a_job_is_a_column_of_its_table() -> None:
    tables = "".join(file.sql for file in schema_files.migrations())
    table = re.search(r"create table \{schema\}\.job \((.*?)\n\);", tables, re.DOTALL)
    assert table is not None
    domains = dict(re.findall(r"create domain (\{schema\}\.\w+) as (\w+)", tables))
    plain = re.sub(r"\{schema\}\.\w+", lambda found: domains[found[0]], table[1])
    for column in (*JOB, TIMES[0]):
        made = re.search(rf"(^    |, ){column.name} {column.type}\b", plain, re.MULTILINE)
        assert made or re.search(added(column.name, column.type), tables), column


def added(name: str, type_: str) -> str:
    """What finds the column in a statement of a later file, which may add several at once."""
    return rf"alter table \{{schema\}}\.job\b[^;]*\badd column (if not exists )?{name} {type_}\b"


def test_a_column_may_come_with_a_later_migration() -> None:
    later = "alter table {schema}.job\n    add column shape text, add column colour text default 'red';\n"

    assert re.search(added("colour", "text"), later) and re.search(added("shape", "text"), later)
    assert not re.search(added("colour", "int"), later)
    assert not re.search(added("colour", "text"), later.replace("schema}.job", "schema}.jobs"))


def test_what_a_new_job_carries_is_spelled_in_the_order_of_the_places_columns() -> None:
    spelled = spell_lists("{carried}; {carried_new of m}").split("; ")

    names, values = (part.split(", ") for part in spelled)
    assert dict(zip(names, values, strict=True)) == {
        **{name: f"m.{name}" for name in names},
        "attempt": "0",
        "crashes": "0",
    }


def test_what_no_job_has_is_left_out_and_what_all_share_is_sent_once() -> None:
    arrays = dict(zip(names((*JOB, *TIMES)), job_arrays([new_job(), new_job(), new_job(tenant="acme")]), strict=True))

    assert arrays["tenant"] == (None, None, "acme")
    assert arrays["run_at"] is None and arrays["subject"] is None
    assert arrays["queue"] == ("default",) and arrays["id"] is not None and len(arrays["id"]) == 3


def test_no_name_in_braces_is_left_in_what_is_sent() -> None:
    later = {"schema", "where", "direction", "notify", "hex", "ours", "groups"}  # filled in by the caller
    later |= {"table", "column", "keys", "after", "same", "type"}  # of the places of sealed values
    # Of a supervisor's process.
    later |= {"task", "task_id", "attempt", "attempt_id", "succeeded", "failed", "final", "key_object"}
    rendered = [file.sql for file in (*schema_files.migrations(), *schema_files.functions())]
    rendered += statements("{schema}").values()

    for text in rendered:
        assert set(re.findall(r"(?<!')\{([a-z]\w+)(?: of [^}]*)?\}", text)) <= later


def test_the_tuples_of_a_bulk_are_short_enough_to_be_reused() -> None:
    """Python keeps tuples of up to 19 items; with 20 a job, a bulk was collected twice as often."""
    assert MOST_FIELDS < 20
    assert len(job_arrays([new_job()])) == len(JOB) + len(TIMES)
