// Graphile Worker with a local queue and completions in batches, as its page about performance advises.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { main } from "./program.js";

const CONCURRENCY = 100;
const LOCAL_QUEUE = 2_000;
const BATCH_DELAY_MS = 5;

const quiet = new Logger(() => () => {});
const preset = (url, connections, options = {}) => ({
  worker: { connectionString: url, maxPoolSize: connections, logger: quiet, ...options },
});

async function install(url) {
  const utils = await makeWorkerUtils({ preset: preset(url, 1) });
  await utils.migrate();
  await utils.release();
}

async function producer(url, connections) {
  const utils = await makeWorkerUtils({ preset: preset(url, connections) });
  return {
    enqueue: (payload) => utils.addJob("noop", payload),
    // Its queues run one job at a time, so a lane is a priority only.
    enqueueMany: (payloads, lane) =>
      utils.addJobs(payloads.map((payload) => ({ identifier: lane.kind, payload, priority: lane.priority }))),
  };
}

async function work(url, counter) {
  const runner = await run({
    preset: preset(url, 10, {
      concurrentJobs: CONCURRENCY,
      localQueue: { size: LOCAL_QUEUE },
      completeJobBatchDelay: BATCH_DELAY_MS,
      failJobBatchDelay: BATCH_DELAY_MS,
    }),
    taskList: { noop: async (payload) => counter.hit(payload.sent) },
    parsedCronItems: [],
  });
  await runner.promise;
}

await main({ install, producer, work });
