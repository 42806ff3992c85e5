// A system of Node as `benchmarks.peers.node_peer` uses it: `node SYSTEM.js install|produce|work URL …`.
import fs from "node:fs";
import readline from "node:readline";
import { performance } from "node:perf_hooks";

const FIRST = 1, LAST = 2, HEADER = 5; // as in benchmarks/run_counter.py
const MAX_LATENCIES = 10_000;
const FLUSH_MS = 2;

// `Date.now()` knows no less than a millisecond.
const now = () => (performance.timeOrigin + performance.now()) / 1000;

// Counts in memory and writes now and then, because Node has no shared memory with a file.
class RunCounter {
  #file;
  #count = 0;
  #cells = new Float64Array(HEADER);
  #latencies = [];
  #written = 0;
  #due = false;

  constructor(path) {
    this.#file = fs.openSync(path, "r+");
  }

  hit(sent) {
    const at = now();
    if (!this.#count) this.#cells[FIRST] = at;
    this.#count += 1;
    this.#cells[LAST] = at;
    if (sent && this.#latencies.length < MAX_LATENCIES) this.#latencies.push(at - sent);
    if (!this.#due) {
      this.#due = true;
      setTimeout(() => this.#flush(), FLUSH_MS);
    }
  }

  #flush() {
    this.#due = false;
    const fresh = Float64Array.from(this.#latencies.slice(this.#written));
    if (fresh.length) fs.writeSync(this.#file, bytes(fresh), 0, fresh.byteLength, 8 * (HEADER + this.#written));
    this.#written += fresh.length;
    fs.writeSync(this.#file, bytes(this.#cells), 8 * FIRST, 8 * 2, 8 * FIRST);
    // Last, so that a reader who sees the count also sees its times.
    fs.writeSync(this.#file, bytes(Float64Array.of(this.#count)), 0, 8, 0);
  }
}

const bytes = (cells) => new Uint8Array(cells.buffer, cells.byteOffset, cells.byteLength);

const payload = (id, sent = 0) => ({ id, to: "ada@example.com", sent, text: "your order is on its way" });

// Enqueues from so many tasks for so long, as benchmarks/enqueueing.py does.
async function fill(producer, { tasks, batch, seconds }) {
  const many = Array.from({ length: batch }, (_, id) => payload(id));
  const lane = { kind: "noop", queue: "bench", priority: 0 };
  const start = performance.now();
  const until = start + seconds * 1000;
  let number = 0;
  const produce = async () => {
    let done = 0;
    for (; performance.now() < until; done += batch) {
      if (batch === 1) await producer.enqueue(payload(number++));
      else await producer.enqueueMany(many, lane);
    }
    return done;
  };
  const done = await Promise.all(Array.from({ length: tasks }, produce));
  return { done: done.reduce((sum, one) => sum + one, 0), seconds: (performance.now() - start) / 1000 };
}

// One line of JSON in, one out.
async function serve(producer) {
  console.log("{}");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { ask, ...rest } = JSON.parse(line);
    let answer = {};
    if (ask === "one") await producer.enqueue({ ...rest.payload, sent: rest.payload.sent && now() });
    else if (ask === "many") await producer.enqueueMany(rest.payloads, rest.lane);
    else answer = await fill(producer, rest);
    console.log(JSON.stringify(answer));
  }
  process.exit(0);
}

// A harness that was killed cannot end its workers.
function endWithParent() {
  const parent = process.ppid;
  setInterval(() => process.ppid === parent || process.exit(1), 1000);
}

export async function main({ install, producer, work }) {
  const [verb, url, ...rest] = process.argv.slice(2);
  if (verb === "install") {
    await install(url);
    process.exit(0);
  }
  endWithParent();
  if (verb === "produce") await serve(await producer(url, Math.min(Number(rest[0]), 20)));
  else await work(url, new RunCounter(rest[0]), rest[1].split(","));
}
