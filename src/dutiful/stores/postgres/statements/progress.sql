-- name: phases
select name, position, state, attempt, started_at, ended_at, result, error, progress
from {schema}.phases($1);
