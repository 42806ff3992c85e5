"""Functions of a shop that record what runs, and a login that may run some of them by their names."""

from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

SETUP = """
    create schema shop; create schema hidden;
    create table shop.fact (what text);
    create function shop.note(p jsonb) returns jsonb language sql security definer set search_path = pg_catalog, pg_temp
        as $$ insert into shop.fact values (p ->> 'what')
              returning jsonb_build_object('status', 'succeeded', 'got', p) $$;
    create function shop.who(p jsonb) returns jsonb language sql as $$ select to_jsonb(current_user::text) $$;
    create function shop.fails(p jsonb) returns jsonb language plpgsql
        as $$ begin raise exception 'no such order' using errcode = 'P0007'; end $$;
    create function shop."Odd; name""()"(p jsonb) returns jsonb language sql as $$ select '"odd"'::jsonb $$;
    create function shop.nothing(p jsonb) returns jsonb language sql as $$ select null::jsonb $$;
    create function shop.unlisted(p jsonb) returns jsonb language sql security definer
        as $$ insert into shop.fact values ('unlisted') returning '1'::jsonb $$;
    create function shop.everyones(p jsonb) returns jsonb language sql security definer
        as $$ insert into shop.fact values ('everyones') returning '1'::jsonb $$;
    create function hidden.note(p jsonb) returns jsonb language sql security definer
        as $$ insert into shop.fact values ('hidden') returning '1'::jsonb $$;
    create function shop.texts(p text) returns jsonb language sql security definer
        as $$ insert into shop.fact values ('texts') returning '1'::jsonb $$;
    create function shop.two(p jsonb, q jsonb default '1') returns jsonb language sql security definer
        as $$ insert into shop.fact values ('two') returning '1'::jsonb $$;
    create function shop.many(p jsonb) returns setof jsonb language sql security definer
        as $$ insert into shop.fact values ('many') returning '1'::jsonb $$;
    create function shop.variadic_(variadic p jsonb[]) returns jsonb language sql security definer
        as $$ insert into shop.fact values ('variadic') returning '1'::jsonb $$;
    create procedure shop.proceed(p jsonb) language sql security definer
        as $$ insert into shop.fact values ('proceed') $$;
    create aggregate shop.total(jsonb) (sfunc = jsonb_concat, stype = jsonb);
    revoke execute on all functions in schema shop, hidden from public;
    grant execute on function shop.everyones(jsonb) to public;
    grant usage on schema shop, dutiful to {role};
    grant execute on function shop.note(jsonb), shop.who(jsonb), shop.fails(jsonb), shop.nothing(jsonb),
        shop."Odd; name""()"(jsonb), shop.texts(text), shop.two(jsonb, jsonb), shop.many(jsonb),
        shop.variadic_(jsonb[]), shop.total(jsonb), hidden.note(jsonb) to {role};
"""


class Shop:
    """A schema of functions, and a login that may execute some of them."""

    def __init__(self, url: str) -> None:
        self.role = f"shop_{uuid4().hex[:8]}"
        self.owner = psycopg.connect(url, autocommit=True)
        role = sql.Identifier(self.role)
        self.owner.execute(sql.SQL("create role {} login password 'not-a-secret'").format(role))
        self.owner.execute(sql.SQL(SETUP).format(role=role))
        self.worker = psycopg.connect(url, user=self.role, password="not-a-secret", autocommit=True)

    def run(self, name: str | None, payload: Any = None) -> Any:
        row = self.worker.execute("select dutiful.run_function(%s, %s)", [name, Jsonb(payload)]).fetchone()
        assert row is not None
        return row[0]

    def facts(self) -> list[str]:
        return [what for (what,) in self.owner.execute("select what from shop.fact").fetchall()]

    def close(self) -> None:
        self.worker.close()
        self.owner.execute("drop schema shop, hidden cascade")
        self.owner.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(self.role)))
        self.owner.close()
