-- name: claim
select {claim_columns} from {schema}.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: complete
select job_id, claim_id, reason from {schema}.complete($1, $2, $3, $4, $5, $6);

-- name: complete_one
select complete_one
from {schema}.complete_one(cast($1 as uuid), cast($2 as bigint), cast($3 as text), cast($4 as text));

-- name: settle
select job_id, claim_id, reason from {schema}.settle($1, $2, $3, {change_numbers_from_4});

-- name: renew
select job_id, claim_id, cancel from {schema}.renew($1, $2, $3, $4);

-- name: check_claims
select job_id, claim_id, cancel from {schema}.check_claims($1, $2);

-- name: release
select {schema}.release($1, $2);

-- name: complete_one_for
select complete_for
from {schema}.complete_for(
    cast($1 as uuid), cast($2 as bigint), cast($3 as text), cast($4 as text), cast($5 as text));
