-- name: phases
select name, position, state, attempt, started_at, ended_at, result, error
from {schema}.phase where job_id = $1
order by position, name;
