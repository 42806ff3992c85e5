"""Which sessions hold the locks that a change of the schema waits for."""

from typing import Any

_SHOWN = 3
# What others' sessions do is null to a role without pg_read_all_stats; an advisory lock's number is in two parts.
_HOLDERS = """
select distinct a.pid, a.usename, a.application_name, host(a.client_addr) as address, a.state,
       to_char(coalesce(a.xact_start, a.backend_start) at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') as since,
       l.locktype = 'advisory' as advisory
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


async def lock_holders(connection: Any, schema: str, advisory: str) -> str:
    """Describes who holds the advisory lock of this name, else who holds locks on tables of the schema."""
    rows = await connection.fetch(_HOLDERS, advisory, schema)
    found = [row for row in rows if row["advisory"] == rows[0]["advisory"]]
    if not found:
        return "a session that has released it since"
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(map(_describe, found[:_SHOWN])) + more


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
    return f"process {row['pid']} ({', '.join(details)})"
