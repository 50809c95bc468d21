// The coordinator's page: log in, listen to what happens, and let an operator change runs.

import { showDevices, showMore } from "./devices.js";
import { listen } from "./live.js";
import { newsOf, showMembers, showRun, showTable } from "./runs.js";
import { counted, find, say } from "./words.js";

const FULL = "The coordinator's disk is full: no step begins and no update is taken until there is room.";
const SESSION = "/v1/operator/session";
const seen = { runs: new Map(), rounds: new Map(), devices: new Map() };
let [role, chosen, looked, ahead_s, hangUp, isDue] = ["", "", "", 0, null, false];

const now = () => Date.now() / 1000 + ahead_s;

/** Ask the coordinator; a change carries a header that no other site can send. */
async function ask(method, path, body) {
  const headers = { "X-Smidgen-Page": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
}

async function refusal(answer) {
  const told = await answer.json().catch(() => ({}));
  return typeof told.detail === "string" ? told.detail : `the coordinator answered ${answer.status}`;
}

// Logging in and out

const STILL_IN =
  "You are still logged in: the coordinator did not end the session. Load this page again, and log out.";

function showDoor(why = "") {
  hangUp?.();
  hangUp = null;
  role = "";
  for (const known of Object.values(seen)) known.clear();
  if (find("ask").open) find("ask").close();
  find("bar").hidden = find("house").hidden = true;
  find("door").hidden = false;
  say(find("login-error"), why);
  find("token").focus();
}

function enter(told) {
  role = told.role;
  find("token").value = "";
  find("door").hidden = true;
  find("bar").hidden = find("house").hidden = false;
  say(find("who"), role === "operator" ? "logged in as operator" : "logged in as viewer, who may only look");
  say(find("version"), `smidgen ${told.version}`);
  hangUp = listen(["state", "rounds", "devices"], hear, tell, check);
}

/** Whether the session still holds; a coordinator that is away says nothing about it. */
async function check() {
  try {
    const answer = await ask("GET", SESSION);
    if (answer.status !== 401 && (!answer.ok || (await answer.json()).role)) return true;
  } catch {
    return true;
  }
  showDoor("The session is over. Log in again.");
  return false;
}

find("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  say(find("login-error"), "");
  try {
    const answer = await ask("POST", SESSION, { token: find("token").value.trim() });
    if (!answer.ok) {
      say(find("login-error"), await refusal(answer));
      find("token").focus();
      find("token").select();
      return;
    }
    enter(await answer.json());
    find("content").focus();
  } catch {
    say(find("login-error"), "The coordinator does not answer.");
  }
});

find("leave").addEventListener("click", async () => {
  const answer = await ask("DELETE", SESSION).catch(() => null);
  const isOver = answer?.ok || answer?.status === 401; // nobody knows the session any more
  showDoor(isOver ? "" : STILL_IN);
});

// What happens

function tell(isThere) {
  const link = find("link");
  link.className = isThere ? "" : "away";
  say(link, isThere ? "live" : "no connection; trying again");
}

function hear(kind, data) {
  if (kind === "state") {
    ahead_s = data.at_s - Date.now() / 1000;
    say(find("full"), data.is_full ? FULL : "");
    const news = data.runs.map((run) => newsOf(seen.runs.get(run.run_id), run)).filter(Boolean);
    if (news.length) say(find("news"), news.join(". "));
    seen.runs = new Map(data.runs.map((run) => [run.run_id, run]));
  } else if (kind === "rounds") {
    const known = (!data.is_all && seen.rounds.get(data.run_id)) || new Map();
    for (const one of data.rounds) known.set(one.round_index, one);
    seen.rounds.set(data.run_id, known);
  } else {
    if (data.is_all) seen.devices.clear();
    for (const one of data.devices) seen.devices.set(one.device_id, one);
  }
  soon();
}

/** Draw at the next frame, once for all that came until then. */
function soon() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    if (role) draw();
  });
}

/** The run that the address names; empty where nobody can read it. */
function named() {
  try {
    return decodeURIComponent(location.hash.replace(/^#run=/, ""));
  } catch {
    return "";
  }
}

function draw() {
  const runs = [...seen.runs.values()].sort((a, b) => b.created_at_s - a.created_at_s);
  const isOpen = (run) => run.phase !== "finished";
  if (seen.runs.has(named())) chosen = named();
  else if (!seen.runs.has(chosen)) chosen = (runs.find(isOpen) || runs[0])?.run_id || "";
  const isOperator = role === "operator";
  const rounds = [...(seen.rounds.get(chosen)?.values() || [])];
  rounds.sort((a, b) => a.round_index - b.round_index);
  showTable(runs, chosen, choose);
  showRun(seen.runs.get(chosen), rounds, now(), isOperator);
  showDevices([...seen.devices.values()], now(), isOperator, revoke);
  look();
}

/** Ask for a run's devices where somebody looks at them: once, and after each evaluation. */
async function look() {
  const run = seen.runs.get(chosen);
  const parts = run && find("members-details").open ? [run.run_id, run.phase, run.devices, run.accuracy_round] : [];
  const key = parts.join("/");
  if (!key || key === looked) return;
  looked = key;
  const answer = await ask("GET", `/v1/operator/runs/${encodeURIComponent(run.run_id)}/devices?limit=200`).catch(() => null);
  if (!answer?.ok) looked = "";
  else if (looked === key) {
    const told = await answer.json();
    showMembers(run, told.devices, told.next === null);
  }
}

function choose(run_id) {
  chosen = run_id;
  history.replaceState(null, "", `#run=${encodeURIComponent(run_id)}`);
  draw();
  find("run-title").focus();
  find("run-title").scrollIntoView({ block: "nearest" });
}

find("rounds-details").addEventListener("toggle", soon);
find("members-details").addEventListener("toggle", soon);
find("filter").addEventListener("input", soon);
find("search").addEventListener("submit", (event) => event.preventDefault());
find("more").addEventListener("click", () => {
  showMore();
  soon();
});
addEventListener("hashchange", soon);
addEventListener("resize", soon);
setInterval(() => role && soon(), 5000); // "12 s ago" goes on

// What an operator changes

/** Ask whether it is meant; `change` answers what the coordinator said, or null. */
function confirmed(title, text, yes, isHard, change, hasNumber = false) {
  const dialog = find("ask");
  say(find("ask-title"), title);
  say(find("ask-text"), text);
  say(find("ask-error"), "");
  say(find("ask-yes"), yes);
  find("ask-yes").className = isHard ? "main danger" : "main";
  find("ask-field").hidden = !hasNumber;
  find("ask-number").disabled = !hasNumber;
  find("ask-form").onsubmit = async (event) => {
    event.preventDefault();
    find("ask-yes").disabled = true;
    try {
      const answer = await change();
      if (answer.ok) {
        dialog.close();
        say(find("news"), `${title}: done`);
      } else {
        say(find("ask-error"), await refusal(answer));
      }
    } catch {
      say(find("ask-error"), "The coordinator does not answer.");
    }
    find("ask-yes").disabled = false;
  };
  const opener = document.activeElement;
  dialog.onclose = () => {
    const back = opener?.isConnected && !opener.closest("[hidden]") ? opener : find("run-title");
    back.focus();
  };
  dialog.showModal();
  (hasNumber ? find("ask-number") : find("ask-no")).focus();
}

find("ask-no").addEventListener("click", () => find("ask").close());

/** Sends an order to the run that the question is about, whichever is chosen when it is answered. */
const order = (run, what) => (body) => ask("POST", `/v1/operator/runs/${encodeURIComponent(run.run_id)}/${what}`, body);

find("pause").addEventListener("click", () => {
  const run = seen.runs.get(chosen);
  const text = "Nobody is given work of this run until it is resumed; what devices send meanwhile counts.";
  confirmed(`Pause ${run.name}`, text, "Pause", false, order(run, "pause"));
});
find("resume").addEventListener("click", () => {
  const run = seen.runs.get(chosen);
  confirmed(`Resume ${run.name}`, "It goes on where it was paused.", "Resume", false, order(run, "resume"));
});
find("stop").addEventListener("click", () => {
  const run = seen.runs.get(chosen);
  const text = `It ends after ${run.round_index} of ${counted(run.rounds, "round")}. Its adapter is kept, and Extend lets the run go on.`;
  confirmed(`Stop ${run.name}`, text, "Stop", true, order(run, "stop"));
});
find("extend").addEventListener("click", () => {
  const run = seen.runs.get(chosen);
  const text = `It is finished after ${counted(run.rounds, "round")} as it stands. Rounds in total, those already done included.`;
  const number = find("ask-number");
  number.min = run.rounds + 1;
  number.value = run.rounds + 10;
  const send = order(run, "extend");
  const change = () => send({ rounds: Number(number.value) });
  confirmed(`Extend ${run.name}`, text, "Extend", false, change, true);
});

function revoke(device_id) {
  const { name } = seen.devices.get(device_id);
  const text = "Its key is refused from now on, and it takes part in no run. This cannot be undone; the device can be enrolled anew with a token.";
  const path = `/v1/operator/devices/${encodeURIComponent(device_id)}/revoke`;
  confirmed(`Revoke ${name}`, text, "Revoke", true, () => ask("POST", path));
}

// A page that was open before goes on without the form.
const answer = await ask("GET", SESSION).catch(() => null);
const told = answer?.ok ? await answer.json() : {};
if (told.role) enter(told);
else showDoor();
