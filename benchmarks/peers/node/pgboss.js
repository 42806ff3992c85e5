// pg-boss with large batches and notifications.
import { PgBoss } from "pg-boss";
import { main } from "./program.js";

const BATCH = 2_000;
const WORKERS = 4;
const QUEUES = ["bench", "bench_a", "bench_b", "bench_c", "bench_d"];

async function started(url, connections, options) {
  const boss = new PgBoss({ connectionString: url, max: connections, schedule: false, ...options });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

async function install(url) {
  const boss = await started(url, 1, { supervise: false });
  for (const queue of QUEUES) await boss.createQueue(queue, { notify: true });
  await boss.stop();
}

async function producer(url, connections) {
  const boss = await started(url, connections, { supervise: false, migrate: false });
  return {
    enqueue: (payload) => boss.send("bench", payload),
    enqueueMany: (payloads, lane) =>
      boss.insert(lane.queue, payloads.map((data) => ({ data, priority: lane.priority }))),
  };
}

async function work(url, counter, queues) {
  const boss = await started(url, 10, { useListenNotify: true, migrate: false });
  const options = {
    batchSize: BATCH,
    localConcurrency: WORKERS,
    burstWhenBatchFull: true,
    pollingIntervalSeconds: 0.5,
    notifyPollingIntervalSeconds: 0.5,
  };
  for (const queue of queues) {
    await boss.work(queue, options, async (jobs) => {
      for (const job of jobs) counter.hit(job.data.sent);
    });
  }
}

await main({ install, producer, work });
