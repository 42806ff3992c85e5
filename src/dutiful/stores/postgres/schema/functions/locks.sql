-- Named locks as rows, for connections through a transaction pooler, where no session lasts.

-- Takes the lock if it is free and the claim is first in its queue, else joins the queue. Returns whether the claim has
-- the lock; null: the claim is not held. Asking again while waiting writes nothing.
create or replace function {schema}.try_lock(
    p_job uuid, p_claim bigint, p_namespace text, p_key text, p_now timestamptz
) returns boolean
language plpgsql volatile set lock_timeout = '2s' {walk_indexes} as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_ends  timestamptz;
    v_held  {schema}.lock;
    v_first bigint;
begin
    select l.expires_at into v_ends from {schema}.lease l where l.job_id = p_job and l.claim_id = p_claim;
    if not found then return null; end if;
    -- One call at a time for a name.
    perform pg_advisory_xact_lock(hashtextextended(m.value || ' ' || p_namespace || ' ' || p_key, 0))
    from {schema}.lock_secret m;

    select k.* into v_held from {schema}.lock k where k.namespace = p_namespace and k.key = p_key;
    if v_held.claim_id = p_claim then return true; end if;
    -- The first waiter whose claim is live has its turn; without one, the caller has.
    select w.claim_id into v_first from {schema}.lock_wait w
    where w.namespace = p_namespace and w.key = p_key and {schema}.is_claim_live(w.job_id, w.claim_id, v_now)
    order by w.seq
    limit 1;
    -- An expired claim could lose the lock at once: it may try again after its lease is renewed.
    if coalesce(v_first, p_claim) = p_claim and v_ends > v_now
       and (v_held.claim_id is null or {schema}.fence_expired_claim(v_held.job_id, v_held.claim_id, v_now)) then
        delete from {schema}.lock_wait w
        where w.namespace = p_namespace and w.key = p_key
          and (w.claim_id = p_claim or not {schema}.is_claim_live(w.job_id, w.claim_id, v_now));
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

-- Fences a claim whose lease has expired, so that its lock can be given to another: the lease gets a new claim id,
-- which its holder cannot renew; the rescuer finds it as before. False: the claim keeps its lock, because it is live, or
-- may be once its worker has renewed after an outage.
create or replace function {schema}.fence_expired_claim(p_job uuid, p_claim bigint, p_now timestamptz) returns boolean
language plpgsql volatile {use_indexes} as $$
begin
    -- A locked lease is being renewed or settled at this moment, and is not waited for.
    perform 1 from {schema}.lease l
    where l.job_id = p_job and l.claim_id = p_claim and l.expires_at <= p_now and {schema}.may_rescue(p_now)
    for update skip locked;
    if found then
        update {schema}.lease l set claim_id = nextval('{schema}.claim_seq') where l.job_id = p_job;
        return true;
    end if;
    return not exists (select 1 from {schema}.lease l where l.job_id = p_job and l.claim_id = p_claim);
end $$;
