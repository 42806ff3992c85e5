-- name: put_credential
insert into docverse.organization_credentials (org_id, label, encrypted_credential) values ($1, $2, $3)
on conflict (org_id, label) do update set encrypted_credential = excluded.encrypted_credential;

-- name: credential
select encrypted_credential from docverse.organization_credentials where org_id = $1 and label = $2;
