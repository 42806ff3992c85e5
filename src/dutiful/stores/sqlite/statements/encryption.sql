-- name: sealed_page
SELECT {keys}, CASE WHEN instr({column}, '$sealed') > 0 THEN {column} END FROM {table} WHERE {after} ORDER BY {keys} LIMIT ?;

-- name: replace_sealed
-- Compare and set: a row that was written meanwhile keeps what was written.
UPDATE {table} SET {column} = ? WHERE {same} AND {column} = ?;
