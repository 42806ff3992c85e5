-- name: live_workers
select w.lanes, w.kinds from {schema}.worker w where w.expires_at > $1;
