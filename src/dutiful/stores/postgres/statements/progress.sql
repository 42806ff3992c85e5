-- name: report_progress
select report_progress
from {schema}.report_progress($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16);

-- name: phases
select name, position, state, attempt, started_at, ended_at, result, error
from {schema}.phase where job_id = $1
order by position, name;
