"""Which sessions hold the locks that a change of the schema, or a read, waits for."""

from collections.abc import Sequence
from typing import Any

_SHOWN = 3
# What others' sessions do is null to a role without pg_read_all_stats.
_SESSION = """
       a.pid, a.usename, a.application_name, host(a.client_addr) as address, a.state,
       to_char(coalesce(a.xact_start, a.backend_start) at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') as since,
       to_char(a.query_start at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') as asked
"""
# An advisory lock's number is in two parts.
_HOLDERS = f"""
select distinct {_SESSION}, l.locktype = 'advisory' as advisory
from pg_locks l
join pg_stat_activity a using (pid)
where l.granted and l.pid <> pg_backend_pid() and a.datname = current_database()
  and case l.locktype
          when 'advisory' then l.objsubid = 1 and (l.classid::bigint << 32 | l.objid::bigint) = hashtext($1)::bigint
          when 'relation' then l.relation in (select oid from pg_class where relnamespace = to_regnamespace($2))
          else false
      end
order by advisory desc, since nulls first, a.pid
"""
# A read waits for no other mode. A session that waits for that lock itself keeps later readers waiting, too.
_READ_BLOCKERS = f"""
select distinct {_SESSION}, l.granted
from pg_locks l
join pg_stat_activity a using (pid)
where l.locktype = 'relation' and l.mode = 'AccessExclusiveLock' and a.datname = current_database()
  and l.relation in (select oid from pg_class where relnamespace = to_regnamespace($1))
order by l.granted desc, since nulls first, a.pid
"""


async def lock_holders(connection: Any, schema: str, advisory: str) -> str:
    """Describes who holds the advisory lock of this name, else who holds locks on tables of the schema."""
    rows = await connection.fetch(_HOLDERS, advisory, schema)
    found = [row for row in rows if row["advisory"] == rows[0]["advisory"]]
    return _listed(found) if found else "a session that has released it since"


async def read_blockers(connection: Any, schema: str) -> str:
    """Describes who keeps readers of tables of the schema waiting."""
    rows = await connection.fetch(_READ_BLOCKERS, schema)
    return _listed(rows) if rows else "a session that has released it since, or one of pg_prepared_xacts"


def _listed(rows: Sequence[Any]) -> str:
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return ", ".join(map(_describe, rows[:_SHOWN])) + more


def remedy(holders: str) -> str:
    """What to do about them."""
    pid = holders.removeprefix("process ").partition(" ")[0]
    return f"let it finish, or end it with `select pg_terminate_backend({pid if pid.isdecimal() else '…'})`"


def _describe(row: Any) -> str:
    details = [f"role {row['usename']}"]
    if row["application_name"]:
        details.append(f"application {row['application_name']}")
    if row["address"]:
        details.append(f"from {row['address']}")
    if row["since"]:
        details.append(f"{row['state'] or 'connected'} since {row['since']} UTC")
    if row["asked"]:
        details.append(f"its last statement at {row['asked']} UTC")
    return f"process {row['pid']} ({', '.join(details)})"
