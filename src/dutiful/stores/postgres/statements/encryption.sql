-- name: sealed_page
-- A page is cut before it is searched, so that a table without sealed values is not read by one statement.
with page as materialized (
    select {keys}, {column}::text as value from {schema}.{table} where {after} order by {keys} limit $1
)
select r.key, r.value, r.total
from (select array[{keys as text}] as key, p.value, count(*) over () as total, row_number() over (order by {keys}) as n
      from page p) r
where strpos(r.value, '$sealed') > 0 or r.n = r.total
order by r.n;

-- name: replace_sealed
-- Compare and set: a row that was written meanwhile keeps what was written.
update {schema}.{table} t set {column} = cast(n.new as {type})
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) n (first, second, old, new)
where {same} and t.{column}::text = n.old
returning 1;
