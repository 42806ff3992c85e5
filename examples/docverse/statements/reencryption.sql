-- name: credentials_of_org
select id, label, encrypted_credential from docverse.organization_credentials where org_id = $1 order by id;

-- name: rotate_credential
-- Only if it is what was read: one that was replaced meanwhile is under the newest key already.
update docverse.organization_credentials set encrypted_credential = $3, date_rotated = clock_timestamp()
where id = $1 and encrypted_credential = $2;
