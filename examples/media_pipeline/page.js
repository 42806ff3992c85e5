"use strict";

const at = (id) => document.getElementById(id);
const jobs = new Map(); // by id: the job as it was last seen, and its card
const ENDED = ["completed", "failed", "cancelled", "stale"];
// Whatever happens to a job besides progress: it is looked up, so that the page never guesses.
const STEPS = [
  "enqueued", "started", "phase_completed", "retrying", "completed", "failed", "cancelled",
  "webhook_delivered", "webhook_failed", "stale",
];
const turns = new Map(); // by id: which look at it was asked last
let asked = 0;

async function call(path, options) {
  const response = await fetch(path, options).catch(() => {
    throw new Error("the server does not answer; is it still running?");
  });
  const body = await response.json();
  if (!response.ok) throw new Error(typeof body.detail === "string" ? body.detail : response.statusText);
  return body;
}

async function start() {
  const { at: since, files, jobs: known } = await call("/jobs");
  at("files").replaceChildren(...files.map(makeButton));
  known.forEach(show);
  listen(since);
}

/** After a break: the server may have been started again, with other jobs. */
async function refresh() {
  // What comes by events meanwhile is newer than the answer.
  const before = [...jobs.keys()], turn = ++asked;
  const { jobs: known } = await call("/jobs");
  const ids = new Set(known.map((job) => job.id));
  before.filter((id) => !ids.has(id)).forEach(remove);
  known.filter((job) => (turns.get(job.id) ?? 0) < turn).forEach(show);
}

function listen(since) {
  const source = new EventSource(`/events?since=${encodeURIComponent(since)}`);
  source.onopen = () => {
    if (at("link").dataset.state === "lost") refresh().catch(() => {}); // it was lost again: the next time
    link("live", "live");
  };
  source.onerror = () => link("lost", "connection lost, trying again");
  source.addEventListener("progress", (event) => progressed(JSON.parse(event.data)));
  source.addEventListener("deleted", (event) => remove(JSON.parse(event.data).job_id));
  source.addEventListener("gap", () => location.reload());
  for (const step of STEPS) source.addEventListener(step, (event) => look(JSON.parse(event.data).job_id));
}

function link(state, text) {
  at("link").dataset.state = state;
  at("link").textContent = text;
}

/** Of several requests for one job at the same time, the last one counts. */
async function look(id) {
  const turn = ++asked;
  turns.set(id, turn);
  const job = await call(`/jobs/${id}`).catch(() => null); // deleted while we asked: the event comes
  if (job && turns.get(id) === turn) show(job);
}

function progressed({ job_id: id, data }) {
  const job = jobs.get(id)?.job;
  if (!job || job.status !== "active" || data.overall < job.progress) return; // older than what we know
  const phases = job.phases.map((phase) =>
    phase.name === data.phase ? { ...phase, status: "running", progress: data.percent ?? 0 } : phase);
  show({ ...job, phases, progress: data.overall, message: data.message });
}

function show(job) {
  const card = jobs.get(job.id)?.card ?? makeCard(job);
  const before = jobs.get(job.id)?.job;
  jobs.set(job.id, { job, card });
  const part = (selector) => card.querySelector(selector);
  card.dataset.status = job.status;
  part(".status").textContent = label(job);
  part(".whole progress").value = job.progress;
  part(".whole output").textContent = `${job.progress} %`;
  part(".cancel").hidden = ENDED.includes(job.status);
  part(".message").textContent = job.error ?? (job.status === "active" ? job.message ?? "" : found(job));
  job.phases.forEach((phase, n) => {
    const row = part(".phases").children[n];
    row.dataset.status = phase.status;
    const usual = ["pending", "running", "completed"].includes(phase.status); // the bar says it
    row.querySelector(".name").textContent = usual ? phase.name : `${phase.name}, ${phase.status}`;
    row.querySelector("progress").value = phase.progress;
  });
  const url = job.result?.url;
  if (url?.endsWith(".png") && part("img").src !== url) {
    part("img").src = url;
    part("img").alt = `thumbnail of ${name(job)}`;
    part("img").hidden = false;
  }
  if (before && before.status !== job.status) at("said").textContent = `${name(job)}: ${label(job)}`;
  at("empty").hidden = true;
}

function makeCard(job) {
  const card = at("job").content.firstElementChild.cloneNode(true);
  card.dataset.id = job.id;
  card.querySelector("h3").textContent = name(job);
  card.querySelector(".picture span").textContent = name(job).split(".").pop().toUpperCase();
  card.querySelector(".whole progress").setAttribute("aria-label", `${name(job)}, overall`);
  card.querySelector(".cancel").setAttribute("aria-label", `Cancel ${name(job)}`);
  card.querySelector(".cancel").onclick = (event) => act(event.target, async () => {
    await call(`/jobs/${job.id}/cancel`, { method: "POST" });
    await look(job.id); // hides the button before it works again
  });
  card.querySelector(".phases").append(...job.phases.map((phase) => {
    const row = at("phase").content.firstElementChild.cloneNode(true);
    row.querySelector("progress").setAttribute("aria-label", phase.name);
    return row;
  }));
  const older = [...at("jobs").children].find((other) => other.dataset.id < job.id); // ids grow with time
  at("jobs").insertBefore(card, older ?? null);
  return card;
}

function remove(id) {
  jobs.get(id)?.card.remove();
  jobs.delete(id);
  at("empty").hidden = jobs.size > 0;
}

function makeButton(file) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = file;
  made.dataset.file = file;
  made.onclick = () => act(made, () => call("/jobs", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ file, delay: at("later").checked ? 5 : 0 }),
  }));
  return made;
}

async function act(button, deed) {
  button.disabled = true; // a double click asks once
  at("problem").hidden = true;
  try {
    await deed();
  } catch (error) {
    at("problem").textContent = error.message;
    at("problem").hidden = false;
  }
  button.disabled = false;
}

const name = (job) => job.data.source.split("/").pop();

function label(job) {
  if (job.status === "pending") return job.attempts ? "waits to be tried again" : "waiting";
  const again = job.attempts > 1 ? `, attempt ${job.attempts}` : "";
  const sent = job.webhook_sent ? ", webhook sent" : "";
  return job.status + (job.status === "active" ? again : sent);
}

function found(job) {
  const { width, rows } = job.result?.found ?? {};
  if (width) return `${width} × ${job.result.found.height} pixels, thumbnail and histogram made`;
  return rows ? `${rows.toLocaleString("en")} rows, statistics made` : "";
}

start().catch((error) => link("lost", error.message));
