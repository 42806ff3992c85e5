// The desk of one firm: what the server says, drawn again about once a second.

const ADMIN = "/api/jobs/admin";
const REPAIRABLE = "email_ingestion_parse";
const LOOK = 700; // milliseconds
const DESKS = {
  manager: "",
  staff: " · jobs and dead letters are for managers",
  viewer: " · jobs and dead letters are for managers who are staff",
};
const find = (selector, within = document) => within.querySelector(selector);
const GREETING = find("#who").textContent;
let timer = 0;
let manages = false;

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
  if (!answer.ok) throw Object.assign(new Error(reason(found)), {status: answer.status});
  return found;
}

function reason(problem) {
  if (typeof problem.detail === "string") return problem.detail;
  if (Array.isArray(problem.detail)) return problem.detail.map((one) => `${one.loc.at(-1)}: ${one.msg}`).join("; ");
  return problem.title ?? "the server did not answer as expected";
}

// An answer to what a person did stays until they do something else; one to a look, until the next look succeeds.
function say(problem, of = "act") {
  const line = find("#problem");
  if (!problem && line.dataset.of !== of) return;
  line.dataset.of = of;
  line.textContent = problem;
  line.hidden = !problem;
}

function element(tag, text, kind) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function pill(status) {
  const made = element("span", status.replaceAll("_", " "), "pill");
  made.dataset.status = status;
  return made;
}

function time(text) {
  return new Date(text).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: "2-digit"});
}

function fill(list, items, draw) {
  find(list).replaceChildren(...items.map(draw));
}

function row(top, detail, extra) {
  const made = document.createElement("li");
  const line = element("p", "", "top");
  line.append(...top);
  made.append(line);
  if (detail) made.append(element("p", detail, "meta"));
  if (extra) made.append(element("p", extra, "error"));
  return made;
}

function drawMail(messages) {
  find("#no-mail").hidden = messages.length > 0;
  fill("#messages", messages.toReversed(), (one) => {
    const made = row(
      [element("b", one.subject ?? "not read yet"), element("span", one.client ?? "", "client")],
      one.sender ?? one.external_id,
    );
    made.dataset.message = one.external_id;
    return made;
  });
}

function drawJobs(jobs, counts) {
  find("#no-jobs").hidden = jobs.length > 0;
  find("#counts").textContent = jobs.length ? counts : "";
  fill("#jobs", jobs, (job) => {
    const tries = job.attempt_count > 1 ? `, attempt ${job.attempt_count} of ${job.max_attempts}` : "";
    const made = row(
      [element("b", job.job_type.replaceAll("_", " ")), pill(job.status)],
      [`${time(job.created_at)}${tries}`, job.idempotency_key].filter(Boolean).join(" · "),
      job.status === "failed" || job.status === "pending" ? job.error_message : "",
    );
    made.dataset.job = job.job_id;
    made.dataset.status = job.status;
    return made;
  });
}

// Letters are kept while they stand, because a person may be writing in them.
function drawLetters(letters) {
  find("#no-letters").hidden = letters.length > 0;
  const list = find("#letters");
  const standing = new Map([...list.children].map((one) => [one.dataset.letter, one]));
  const wanted = letters.map((one) => standing.get(one.dlq_id) ?? newLetter(one));
  letters.forEach((one, index) => {
    const shown = find(".pill", wanted[index]);
    shown.textContent = one.status.replaceAll("_", " ");
    shown.dataset.status = one.status;
    find(".decide", wanted[index]).hidden = !["pending_review", "acknowledged"].includes(one.status);
  });
  if (wanted.some((one, index) => list.children[index] !== one) || list.children.length !== wanted.length) {
    list.replaceChildren(...wanted);
  }
}

function newLetter(one) {
  const made = find("#letter").content.firstElementChild.cloneNode(true);
  made.dataset.letter = one.dlq_id;
  find(".type", made).textContent = one.job_type.replaceAll("_", " ");
  find(".error", made).textContent = one.error_message;
  find(".meta", made).textContent = `${time(one.created_at)} · ${one.error_class} · attempts: ${one.attempt_count}`;
  // Only a message that was fetched can be written down by hand; other jobs are run again as they are.
  if (one.job_type === REPAIRABLE) {
    const repair = find(".repair", made);
    repair.hidden = repair.disabled = false;
    find("[value=reprocess]", made).textContent = "Repair and reprocess";
  }
  find(".decide", made).addEventListener("submit", (event) => decide(event, one.dlq_id));
  return made;
}

async function decide(event, id) {
  event.preventDefault();
  const {sender, subject, notes} = Object.fromEntries(new FormData(event.target));
  const act = event.submitter.value;
  await doing(event.submitter, async () => {
    if (act === "reprocess" && sender !== undefined) {
      await ask(`/site/dlq/${id}/repair`, "POST", {sender, subject});
    }
    await ask(`${ADMIN}/dlq/${id}/${act}/`, "POST", {notes});
  });
}

function drawTrail(events) {
  find("#no-trail").hidden = events.length > 0;
  fill("#trail", events, (one) => {
    const detail = [time(one.at), one.reason].filter(Boolean).join(" · ");
    return row([element("b", one.event), element("span", one.principal, "client")], detail);
  });
}

async function look() {
  clearTimeout(timer);
  try {
    drawMail(await ask("/site/mail"));
    if (manages) await lookAtJobs();
    say("", "look");
  } catch (error) {
    if (error.status === 401) return start();
    say(error.message, "look");
  }
  timer = setTimeout(look, LOOK);
}

async function lookAtJobs() {
  const [queue, letters, trail] = await Promise.all([
    ask(`${ADMIN}/queue/?limit=30`),
    ask(`${ADMIN}/dlq/?limit=20`),
    ask(`${ADMIN}/audit/?action=dead_letter.&limit=12`),
  ]);
  const open = queue.jobs.filter((job) => ["pending", "processing"].includes(job.status)).length;
  drawJobs(queue.jobs, open ? `${open} to do` : "all done");
  drawLetters(letters.dlq_items.filter((one) => !["resolved", "discarded"].includes(one.status)));
  drawTrail(trail.events);
}

async function doing(button, act) {
  button.disabled = true;
  try {
    await act();
    say("");
    await look();
  } catch (error) {
    say(error.message);
  }
  button.disabled = false;
}

async function start() {
  clearTimeout(timer);
  const user = await ask("/site/session").catch(() => null);
  find("#sign-in").hidden = user !== null;
  find("#desk").hidden = user === null;
  find("#sign-out").hidden = user === null;
  if (user === null) return forget();
  manages = user.role === "manager";
  find("#work").hidden = find("#review").hidden = !manages;
  find("#who").textContent = `Firm ${user.firm} · ${user.name}, ${user.role}${DESKS[user.role]}`;
  await look();
}

// Another person may sign in next, perhaps of another firm.
function forget() {
  find("#who").textContent = GREETING;
  find("#problem").hidden = true;
  for (const list of ["#messages", "#jobs", "#letters", "#trail"]) find(list).replaceChildren();
}

find("#sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await ask("/site/session", "POST", Object.fromEntries(new FormData(event.target)));
    say("");
    await start();
  } catch (error) {
    say(error.message);
  }
});
find("#sign-out").addEventListener("click", async () => {
  try {
    await ask("/site/session", "DELETE");
    await start();
  } catch (error) {
    say(error.message);
  }
});
find("#write").addEventListener("submit", (event) => {
  event.preventDefault();
  const {sender, subject, damaged} = Object.fromEntries(new FormData(event.target));
  doing(event.submitter, async () => {
    await ask("/site/mail", "POST", {sender, subject, damaged: damaged === "on"});
    find("#write [name=damaged]").checked = false; // the next one arrives whole, unless somebody says otherwise
  });
});
start();
