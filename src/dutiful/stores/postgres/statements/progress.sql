-- name: phases
select name, position, state, attempt, started_at, ended_at, result, error
from {schema}.phases($1);
