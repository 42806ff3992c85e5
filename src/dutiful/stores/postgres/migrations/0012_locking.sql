-- Named locks as rows, where no session lasts: behind a transaction pooler.

-- Mixed into the numbers of advisory locks, which anybody who may connect can take: whoever does not know it cannot tell
-- which number a name has.
insert into {schema}.meta (key, value) values ('lock_secret', gen_random_uuid()::text || gen_random_uuid());

-- How the worker keeps its locks: those of one fleet must agree.
alter table {schema}.worker add column locks text;

-- Take the lock if it is free and our turn, else stand in line. Returns whether it is ours; null: our claim is not held.
-- To ask again while one waits writes nothing.
create function {schema}.try_lock(p_job uuid, p_claim bigint, p_namespace text, p_key text, p_now timestamptz)
returns boolean
language plpgsql volatile
set lock_timeout = '2s' set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_ends  timestamptz;
    v_held  {schema}.lock;
    v_first bigint;
begin
    select l.expires_at into v_ends from {schema}.lease l where l.job_id = p_job and l.claim_id = p_claim;
    if not found then
        return null;
    end if;
    -- One at a time for a name, for the length of this call.
    perform pg_advisory_xact_lock(hashtextextended(m.value || ' ' || p_namespace || ' ' || p_key, 0))
    from {schema}.meta m where m.key = 'lock_secret';

    select k.* into v_held from {schema}.lock k where k.namespace = p_namespace and k.key = p_key;
    if v_held.claim_id = p_claim then
        return true;
    end if;
    -- The first in line whose claim lasts has its turn; should nobody be left there, it is ours.
    select w.claim_id into v_first from {schema}.lock_wait w
    where w.namespace = p_namespace and w.key = p_key and {schema}.is_live(w.job_id, w.claim_id, v_now)
    order by w.seq
    limit 1;
    -- A claim whose time is over could lose the lock at once: it may try again when its lease has been renewed.
    if coalesce(v_first, p_claim) = p_claim and v_ends > v_now
       and (v_held.claim_id is null or {schema}.forfeit(v_held.job_id, v_held.claim_id, v_now)) then
        delete from {schema}.lock_wait w
        where w.namespace = p_namespace and w.key = p_key
          and (w.claim_id = p_claim or not {schema}.is_live(w.job_id, w.claim_id, v_now));
        insert into {schema}.lock as k (namespace, key, job_id, claim_id, taken_at)
        values (p_namespace, p_key, p_job, p_claim, v_now)
        on conflict (namespace, key) do update
        set job_id = p_job, claim_id = p_claim, taken_at = v_now
        where k.claim_id = v_held.claim_id;
        return found;
    end if;
    if not exists (
        select 1 from {schema}.lock_wait w
        where w.namespace = p_namespace and w.key = p_key and w.job_id = p_job and w.claim_id = p_claim
    ) then
        insert into {schema}.lock_wait (namespace, key, job_id, claim_id) values (p_namespace, p_key, p_job, p_claim);
    end if;
    return false;
end $$;

-- Whether a claim is held and its lease not over.
create function {schema}.is_live(p_job uuid, p_claim bigint, p_now timestamptz) returns boolean
language sql stable as $$
    select exists (select 1 from {schema}.lease l
                   where l.job_id = p_job and l.claim_id = p_claim and l.expires_at > p_now)
$$;

-- Take its lock from a claim that is gone, or whose lease is over. Such a claim must not be renewed after that, so it
-- gets a number that its holder does not know; the rescuer finds it as before. False: it keeps its lock.
create function {schema}.forfeit(p_job uuid, p_claim bigint, p_now timestamptz) returns boolean
language plpgsql volatile
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
begin
    -- One that is locked is being renewed or settled at this moment: that is not worth a wait.
    perform 1 from {schema}.lease l
    where l.job_id = p_job and l.claim_id = p_claim and l.expires_at <= p_now
    for update skip locked;
    if found then
        update {schema}.lease l set claim_id = nextval('{schema}.claim_seq') where l.job_id = p_job;
        return true;
    end if;
    return not exists (select 1 from {schema}.lease l where l.job_id = p_job and l.claim_id = p_claim);
end $$;
