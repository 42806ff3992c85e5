-- The tables of the host. Jobs are not among them: they are Dutiful's, and the view docverse.queue_job shows them.

create schema docverse;

create table docverse.organization (
    id              bigint primary key generated always as identity,
    slug            text not null unique,
    title           text not null,
    -- pointer: the edge has a key for each edition, which names a build. copy: each edition has a copy of its build.
    publishing_mode text not null check (publishing_mode in ('pointer', 'copy')),
    -- The first rule that matches a git ref decides its slug: [{"match": "tickets/*", "slug": "*"}, {"match": …, "ignore": true}]
    rewrite_rules   jsonb not null default '[]',
    -- How long deleted content can be brought back.
    purgatory_retention interval not null default '30 days',
    date_created    timestamptz not null default clock_timestamp()
);

-- What members of an organization authenticate with; only its hash is stored.
create table docverse.api_token (
    token_hash text primary key,
    org_id     bigint not null references docverse.organization,
    role       text not null check (role in ('uploader', 'admin')),
    date_created timestamptz not null default clock_timestamp()
);

-- Secrets of other services, encrypted by CredentialEncryptor. `edge` is the token for the organization's keys at the edge,
-- `github` the secret that signs webhooks.
create table docverse.organization_credentials (
    id     bigint primary key generated always as identity,
    org_id bigint not null references docverse.organization,
    label  text not null,
    encrypted_credential text not null,
    date_created timestamptz not null default clock_timestamp(),
    date_rotated timestamptz,
    unique (org_id, label)
);

create table docverse.project (
    id     bigint primary key generated always as identity,
    org_id bigint not null references docverse.organization,
    slug   text not null,
    title  text not null,
    source_repository text,  -- a git repository in the folder of repositories
    default_ref text not null default 'main',
    -- When the nightly jobs changed an edition, until a dashboard shows it: a job that dies in between leaves it to the next.
    dashboard_due timestamptz,
    date_created timestamptz not null default clock_timestamp(),
    date_deleted timestamptz,
    unique (org_id, slug)
);

create table docverse.build (
    id         bigint primary key generated always as identity,
    public_id  bigint not null unique,  -- written in Crockford's Base32
    project_id bigint not null references docverse.project,
    git_ref    text not null,
    status     text not null default 'pending'
               check (status in ('pending', 'uploaded', 'processing', 'completed', 'completed_with_errors', 'failed')),
    object_prefix text not null unique,
    content_digest text,  -- of the tarball
    -- build_processing for this build. Kept here so that a repeated PATCH finds the same job.
    queue_job  uuid unique,
    date_created  timestamptz not null default clock_timestamp(),
    date_uploaded timestamptz,
    date_completed timestamptz,
    date_deleted  timestamptz
);

create index build_of_project on docverse.build (project_id, date_created);

create table docverse.build_object (
    build_id     bigint not null references docverse.build,
    key          text not null,  -- relative to the build's prefix
    content_hash text not null,
    content_type text not null,
    size         bigint not null,
    primary key (build_id, key)
);

-- Numbers the writers of editions. One for all, because a slug that is deleted and made again keeps its key at the edge.
create sequence docverse.fence;

create table docverse.edition (
    id         bigint primary key generated always as identity,
    project_id bigint not null references docverse.project,
    slug       text not null,
    title      text not null,
    kind       text not null check (kind in ('main', 'release', 'major', 'minor', 'draft')),
    tracking_mode   text not null check (tracking_mode in ('main', 'git_ref', 'semver_major', 'semver_minor', 'manual')),
    tracking_params jsonb not null default '{}',  -- {"git_ref": …}, {"major": 2} or {"major": 2, "minor": 1}
    build_id   bigint references docverse.build,
    -- The build whose content is being written. It stays if its worker dies, so that no older build takes its place.
    publishing_build_id bigint references docverse.build,
    -- Of the latest writer: a lock may be lost, and then its job writes nothing that a later one would not want.
    fence bigint not null default nextval('docverse.fence'),
    lifecycle_exempt boolean not null default false,
    date_created timestamptz not null default clock_timestamp(),
    date_updated timestamptz not null default clock_timestamp(),
    date_ref_deleted timestamptz,  -- flagged by git_ref_audit
    date_deleted timestamptz
);

create unique index edition_slug on docverse.edition (project_id, slug) where date_deleted is null;
create index edition_of_build on docverse.edition (build_id);

create table docverse.edition_build_history (
    id         bigint primary key generated always as identity,
    edition_id bigint not null references docverse.edition,
    build_id   bigint not null references docverse.build,
    reason     text not null check (reason in ('tracked', 'assigned')),
    queue_job  uuid not null,
    date_created timestamptz not null default clock_timestamp(),
    unique (edition_id, build_id, queue_job)  -- a retry logs nothing twice
);

-- Dashboard templates come from a git repository: one for an organization, and overrides for projects.
create table docverse.dashboard_template (
    id         bigint primary key generated always as identity,
    org_id     bigint not null references docverse.organization,
    project_id bigint references docverse.project,
    repository text not null,
    git_ref    text not null default 'main',
    path       text not null default '',  -- the folder in the repository
    commit_sha text,
    object_prefix text,  -- where the files of that commit are in the object store
    date_synced timestamptz,
    unique nulls not distinct (org_id, project_id)
);

-- A project's rule replaces that of its organization.
create table docverse.lifecycle_rule (
    id         bigint primary key generated always as identity,
    org_id     bigint not null references docverse.organization,
    project_id bigint references docverse.project,
    rule       text not null check (rule in ('draft_inactivity', 'build_orphan', 'ref_deleted')),
    enabled    boolean not null default true,
    action     text not null default 'delete' check (action in ('flag', 'delete')),
    older_than interval,  -- null for ref_deleted, which does not wait
    unique nulls not distinct (org_id, project_id, rule)
);

-- Content that was deleted and can still be brought back. A row is written before its content is moved, so that a worker
-- that dies in between leaves nothing that is not known here.
create table docverse.purgatory (
    id         bigint primary key generated always as identity,
    org_id     bigint not null references docverse.organization,
    edition_id bigint references docverse.edition,
    build_id   bigint references docverse.build,
    object_prefix text not null unique,  -- where it is now
    moved_from text not null,
    reason     text not null,
    date_created timestamptz not null default clock_timestamp(),
    date_moved timestamptz,
    check (num_nonnulls(edition_id, build_id) = 1)
);

create unique index purgatory_of_edition on docverse.purgatory (edition_id) where date_moved is null;
create unique index purgatory_of_build on docverse.purgatory (build_id) where date_moved is null;
create index purgatory_age on docverse.purgatory (org_id, date_moved);

-- Webhooks that were received: one that is delivered again enqueues nothing.
create table docverse.github_delivery (
    org_id      bigint not null references docverse.organization,
    delivery_id text not null,
    date_received timestamptz not null default clock_timestamp(),
    primary key (org_id, delivery_id)
);
