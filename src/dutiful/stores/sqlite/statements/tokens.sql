-- name: put_token
INSERT INTO dutiful_api_token ({token_columns}, hash) VALUES ({token_values}, ?) ON CONFLICT (id) DO NOTHING;

-- name: find_token
SELECT {token_columns} FROM dutiful_api_token WHERE hash = ?;

-- name: tokens
SELECT {token_columns} FROM dutiful_api_token ORDER BY created_at DESC, id DESC;

-- name: revoke_token
UPDATE dutiful_api_token SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL;

-- name: touch_token
UPDATE dutiful_api_token SET last_used_at = ?2 WHERE id = ?1 AND coalesce(last_used_at < ?2, TRUE);
