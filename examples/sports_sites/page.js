// The register: what the server says, drawn again about once a second.

const LOOK = 700; // milliseconds
// The services outside, with the breaker that stands before each.
const SERVICES = {
  grid: ["population-grid", "Population grid"],
  elevation: ["elevation-service", "Elevation"],
  copy: ["partners", "Partners"],
  mail: ["email-service", "Mail server"],
};
const find = (selector, within = document) => within.querySelector(selector);
let chosen = null;

async function ask(path, method = "GET", body = undefined) {
  const answer = await fetch(path, {
    method,
    headers: body === undefined ? {} : {"content-type": "application/json"},
    body: body === undefined ? undefined : JSON.stringify(body),
  }).catch(() => {
    throw new Error("the server does not answer; is it still running?");
  });
  if (answer.status === 204) return null;
  const found = await answer.json().catch(() => ({}));
  if (answer.ok) return found;
  const problems = Array.isArray(found.detail) ? found.detail.map((one) => `${one.loc.at(-1)}: ${one.msg}`) : [];
  throw new Error(problems.join("; ") || found.detail || "the server did not answer as expected");
}

// An answer to what a person did stays until they do something else; one to a look, until the next look succeeds.
function say(problem, of = "act") {
  const line = find("#problem");
  if (!problem && line.dataset.of !== of) return;
  line.dataset.of = of;
  line.textContent = problem;
  line.hidden = !problem;
}

// A row is drawn again only if it has changed: a new one has no focus, and loses a click that was half done.
function fill(selector, items, draw) {
  const list = find(selector);
  items.forEach((item, position) => {
    const before = list.children[position];
    const text = JSON.stringify(item);
    if (before?.item === text) return;
    const focused = before?.contains(document.activeElement);
    const row = draw(item);
    row.item = text;
    if (before) before.replaceWith(row);
    else list.append(row);
    if (focused) (find("button", row) ?? row).focus();
  });
  while (list.children.length > items.length) list.lastElementChild.remove();
}

function element(tag, text = "", kind = "", ...children) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  made.append(...children);
  return made;
}

// "closed" alone would read as if the service were shut.
function breakerPill(state) {
  const made = pill(state);
  made.title = {
    closed: "its breaker is closed: calls go through",
    open: "its breaker is open: calls are kept away",
    half_open: "its breaker is half open: a few calls try whether it is back",
  }[state];
  made.textContent = `breaker ${made.textContent}`;
  return made;
}

function pill(status) {
  const made = element("span", status.replaceAll("_", " "), "pill");
  made.dataset.status = status;
  return made;
}

function figure(name, value) {
  return element("div", "", "", element("dt", name), element("dd", value));
}

function drawSites(sites) {
  const figures = (site) => [
    figure("Elevation", site.elevation === null ? "–" : `${site.elevation.toFixed(1)} m`),
    figure("Diversity", site.diversity === null ? "–" : site.diversity.toFixed(2)),
    figure("People", site.population === null ? "–" : site.population.toLocaleString()),
  ];
  fill("#sites", sites, (site) => {
    const made = element(
      "li", "", "site",
      element("p", "", "top", element("b", site.name), element("span", site.type, "client")),
      element("dl", "", "figures", ...figures(site)),
    );
    made.dataset.site = site.lipas_id;
    made.tabIndex = 0;
    made.setAttribute("aria-current", String(chosen?.lipas_id === site.lipas_id));
    made.addEventListener("click", () => choose(site));
    made.addEventListener("keydown", (event) => event.key === "Enter" && choose(site));
    return made;
  });
  if (chosen === null && sites.length) choose(sites[0]);
}

function choose(site) {
  chosen = site;
  find("#editing").textContent = `number ${site.lipas_id}`;
  for (const name of ["name", "type", "east", "north"]) find(`#edit [name=${name}]`).value = site[name];
  for (const one of document.querySelectorAll(".site")) {
    one.setAttribute("aria-current", String(Number(one.dataset.site) === site.lipas_id));
  }
}

function drawEdits(edits) {
  find("#no-edits").hidden = edits.length > 0;
  fill("#edits", edits, (edit) => {
    const at = new Date(edit.at).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: "2-digit"});
    return element(
      "li", "", "",
      element("p", "", "top", element("b", `Edit of ${edit.site}`), element("span", at, "meta")),
      element("ul", "", "jobs", ...edit.jobs.map(drawJob)),
    );
  });
}

function drawJob(job) {
  const made = element("li", "", "", element("p", "", "top", element("span", job.type), pill(job.status)));
  const waits = {breaker: "waits for its service", paused: "waits for its service"}[job.waits_for];
  const tries = job.status === "failed" ? `attempt ${job.attempts} of ${job.max_attempts} failed, tries again` : "";
  if (waits || tries) made.append(element("p", waits ?? tries, "meta"));
  if (job.status === "dead") made.append(element("p", job.error ?? "", "error"));
  made.dataset.type = job.type;
  made.dataset.status = job.status;
  made.style.setProperty("--depth", job.depth);
  return made;
}

function drawOutside({breakers, failing, mails}) {
  const states = new Map(breakers.map((one) => [one.name, one]));
  const services = Object.entries(SERVICES).map(([service, [name, title]]) => {
    const {state = "closed", waiting: jobs = 0} = states.get(name) ?? {};
    return {service, title, state, jobs, failing: failing[service]};
  });
  fill("#services", services, drawService);
  find("#no-mails").hidden = mails.length > 0;
  fill("#mails", mails, (mail) => element("li", "", "", element("b", mail.subject), element("p", mail.to, "meta")));
}

function drawService({service, title, state, jobs, failing}) {
  const button = element("button", failing ? "Repair" : "Break");
  button.addEventListener("click", () => act(() => ask(`/api/outside/${service}`, "PUT", {failing: !failing})));
  const made = element("li", "", "", element("p", "", "service", element("b", title), breakerPill(state), button));
  const notes = [failing ? "does not answer" : "", waiting(jobs)];
  if (notes.some(Boolean)) made.append(element("p", notes.filter(Boolean).join(" · "), "meta"));
  made.dataset.service = service;
  return made;
}

function waiting(jobs) {
  if (!jobs) return "";
  return jobs === 1 ? "1 job waits" : `${jobs} jobs wait`;
}

async function look() {
  const [sites, edits, outside] = await Promise.all([ask("/api/sites"), ask("/api/edits"), ask("/api/outside")]);
  drawSites(sites);
  drawEdits(edits);
  drawOutside(outside);
}

async function act(work) {
  try {
    await work();
    say("");
    await look();
  } catch (error) {
    say(error.message);
  }
}

async function keepLooking() {
  await look().then(() => say("", "look"), (error) => say(error.message, "look"));
  setTimeout(keepLooking, LOOK);
}

find("#edit").addEventListener("submit", (event) => {
  event.preventDefault();
  const {name, type, east, north, editor} = Object.fromEntries(new FormData(event.target));
  const body = {name, type, east: Number(east), north: Number(north), editor};
  act(() => ask(`/api/sites/${chosen.lipas_id}`, "PUT", body));
});
keepLooking();
