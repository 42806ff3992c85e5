-- What people learn by: cues, and the recordings that they answer with.

create table learning.cue (
    cue_id bigserial primary key,
    prompt text not null,
    created_at timestamptz not null default now()
);

create table learning.profile_cue_recording (
    profile_id bigint not null references accounts.profile,
    cue_id bigint not null references learning.cue,
    file_id bigint not null references files.file,
    created_at timestamptz not null default now(),
    primary key (profile_id, cue_id, file_id)
);
