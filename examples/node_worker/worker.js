// A worker in Node: it claims one job at a time, renews its lease while the handler runs, and settles it.
//
//     const worker = new Worker(process.env.DATABASE_URL, {
//       send_email: async (payload, job) => ({ sent: await mail(payload, { signal: job.signal }) }),
//     });
//     process.once("SIGTERM", () => worker.stop());
//     await worker.run();
//
// It touches no table: a login in the group dutiful_sql_worker is enough. To run more than one job at a time, run more
// processes.
import { randomUUID } from "node:crypto";
import pg from "pg";

const CLAIM = `select job_id, claim_id, kind, payload, attempt
               from dutiful.dequeue($1, p_queues => $2, p_lease => $3, p_worker => $4)`;
const RENEW = "select dutiful.renew_job($1, $2, $3) as answer";
const COMPLETE = "select dutiful.complete_job($1, $2, $3) as answer";
const FAIL = "select dutiful.fail_job($1, $2, $3, p_type => $4) as answer";
const RELEASE = "select dutiful.release_job($1, $2) as answer";

// A handler may throw anything; no text of Postgres has a NUL in it.
const failure = (claim, error) => {
  const message = String(error?.message ?? error).replaceAll("\0", "\ufffd");
  return [FAIL, [...claim, message, error?.name ?? "Error"]];
};

export class Worker {
  // Sessions of a pool change, so the worker names itself; its jobs show this id.
  id = randomUUID();
  #stopping = false;
  #hinted = false;
  #wake = () => {};

  constructor(url, handlers, { queues = null, leaseSeconds = 300, pollSeconds = 2, log = () => {} } = {}) {
    this.handlers = handlers;
    this.queues = queues;
    this.lease = `${leaseSeconds} seconds`;
    this.renewMs = Math.min((leaseSeconds * 1000) / 3, 20_000);
    this.pollMs = pollSeconds * 1000;
    this.log = log;
    this.url = url;
    // One session claims and settles; the other renews meanwhile.
    this.pool = new pg.Pool({ connectionString: url, max: 2 });
    this.pool.on("error", (error) => this.log("lost a connection", { message: error.message }));
  }

  async run() {
    const listener = this.#listen();
    while (!this.#stopping) {
      try {
        const { rows } = await this.pool.query(CLAIM, [Object.keys(this.handlers), this.queues, this.lease, this.id]);
        if (rows.length > 0) await this.#work(rows[0]);
        else await this.#idle();
      } catch (error) {
        // The database is away. A job whose outcome was not stored is tried again when its lease has ended.
        this.log("trouble with the database", { message: error.message });
        await this.#idle();
      }
    }
    await listener.then((client) => client?.end()).catch(() => {});
    await this.pool.end();
  }

  // Lets the running job end, and claims no other.
  stop() {
    this.#stopping = true;
    this.#hint();
  }

  async #work(job) {
    const claim = [job.job_id, job.claim_id];
    const stopper = new AbortController();
    const renewal = setInterval(async () => {
      try {
        const answer = await this.#ask(RENEW, [...claim, this.lease]);
        if (answer !== "held") stopper.abort(answer); // cancel_requested, or lost
      } catch (error) {
        this.log("could not renew", { job: job.job_id, message: error.message }); // the next turn may
      }
    }, this.renewMs);
    this.log("started", { job: job.job_id, kind: job.kind });
    let settle;
    try {
      const result = await this.handlers[job.kind](job.payload, {
        id: job.job_id, attempt: job.attempt, signal: stopper.signal,
      });
      settle = [COMPLETE, [...claim, result === undefined ? null : JSON.stringify(result)]];
    } catch (error) {
      // A job that is to be cancelled becomes so when it is given back.
      settle = stopper.signal.reason === "cancel_requested" ? [RELEASE, claim] : failure(claim, error);
    } finally {
      clearInterval(renewal);
    }
    // The database decides whether the claim still holds: the answer `lost` has changed nothing.
    this.log("settled", { job: job.job_id, answer: await this.#settle(claim, ...settle) });
  }

  async #settle(claim, statement, parameters) {
    try {
      return await this.#ask(statement, parameters);
    } catch (error) {
      if (!error.code?.startsWith("22")) throw error;
      return this.#ask(...failure(claim, error)); // the result is too large, or no JSON that Postgres can store
    }
  }

  async #ask(statement, parameters) {
    const { rows } = await this.pool.query(statement, parameters);
    return rows[0].answer;
  }

  // Waits for a hint that there may be a job, or until the next poll, because a hint may be lost.
  async #idle() {
    if (!this.#hinted) {
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, this.pollMs);
        this.#wake = () => resolve(clearTimeout(timer));
      });
    }
    this.#hinted = false;
  }

  #hint() {
    this.#hinted = true;
    this.#wake();
  }

  async #listen() {
    const client = new pg.Client({ connectionString: this.url });
    client.on("error", (error) => this.log("hears no more hints, and polls", { message: error.message }));
    client.on("notification", () => this.#hint());
    try {
      await client.connect();
      await client.query("listen dutiful");
      return client;
    } catch (error) {
      this.log("hears no hints, and polls", { message: error.message });
    }
  }
}
