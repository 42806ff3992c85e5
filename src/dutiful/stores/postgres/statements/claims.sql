-- name: complete_one
select complete_one
from {schema}.complete_one(cast($1 as uuid), cast($2 as bigint), cast($3 as text), cast($4 as text));

-- name: complete_one_for
select complete_for
from {schema}.complete_for(
    cast($1 as uuid), cast($2 as bigint), cast($3 as text), cast($4 as text), cast($5 as text));
