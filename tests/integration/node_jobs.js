// Jobs of fault_jobs.py for a worker in Node: node node_jobs.js LEASE_SECONDS. It prints one JSON object a line.
import { appendFileSync, existsSync, readdirSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Worker } from "./worker.js";

const started = (job) => appendFileSync(process.env.FAULT_DIARY, `${job.id}\n`);
const open = (gate) => existsSync(gate) || existsSync(`${gate}.${process.pid}`);

const handlers = {
  meet: async ({ folder, workers }, job) => {
    started(job);
    writeFileSync(`${folder}/met.node`, "");
    while (readdirSync(folder).filter((name) => name.startsWith("met.")).length < workers) await sleep(10);
    return "node";
  },
  wait: async ({ gate }, job) => {
    started(job);
    while (!open(gate)) await sleep(10);
    return "node";
  },
  // Ends when a person wants it to.
  stoppable: async (_, job) => sleep(3_600_000, null, { signal: job.signal }),
  fails: async () => {
    throw new TypeError("no such mailbox");
  },
  // What cannot be stored as it is.
  unfit: async ({ answer, thrown }) => {
    if (thrown) throw { nothing: null, text: "a text", nul: new Error("a\0b") }[thrown];
    return { large: "x".repeat(2 ** 21), nul: "a\0b", endless: 2n }[answer];
  },
};

const worker = new Worker(process.env.DUTIFUL_DATABASE_URL, handlers, {
  leaseSeconds: Number(process.argv[2]),
  log: (event, facts) => console.log(JSON.stringify({ event, ...facts })),
});
process.once("SIGTERM", () => worker.stop());
await worker.run();
