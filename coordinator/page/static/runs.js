// The table of runs, and the one that is looked at: its step, its rounds, what went wrong.

import * as charts from "./charts.js";
import { ago, bytes, bytesScale, counted, doing, find, keep, loss, make, measureOf, place, row, say, scored, span, stateOf, within } from "./words.js";

const SILENT_S = 120;
const MOST_ROWS = 200; // of the table by round
const PHASES = [
  { name: "training", css: "train", of: (one) => phases(one, "train") },
  { name: "labelling", css: "label", of: (one) => phases(one, "label") },
  { name: "evaluating", css: "evaluate", of: (one) => phases(one, "evaluate") },
  { name: "transfers", css: "moving", of: (one) => phases(one, "download", "upload") },
  { name: "waiting", css: "wait", of: (one) => phases(one, "wait") },
  { name: "other", css: "other", of: (one) => phases(one, "load", "tokenize", "cache", "encode") },
];
const WAYS = [
  { name: "sent by devices", css: "up", of: (one) => one.up_bytes },
  { name: "received by devices", css: "down", of: (one) => one.down_bytes },
];

const LINES = { f1: "accuracy", perplexity: "loss" }; // drawn in the colour of

const phases = (one, ...names) => names.reduce((sum, name) => sum + (one.phases_s[name] || 0), 0);

/** The table of all runs; a click or Enter on a run's name shows it. */
export function showTable(runs, chosen, choose) {
  const table = find("runs");
  find("no-runs").hidden = runs.length > 0;
  table.hidden = runs.length === 0;
  say(find("runs-score"), [...new Set(runs.map((run) => measureOf(run).word))].join(" or ") || "accuracy");
  keep(
    table.tBodies[0],
    runs,
    (run) => run.run_id,
    (run) => {
      const line = row(table, ["", "", "number", "number", "number", "number"]);
      const button = make("button", "link");
      button.type = "button";
      button.addEventListener("click", () => choose(run.run_id));
      line.cells[0].append(button);
      line.cells[1].append(make("span", "state"));
      return line;
    },
    (line, run) => {
      const [word, css] = stateOf(run);
      const [name, state, round, score, nats, here] = line.cells;
      if (run.run_id === chosen) line.setAttribute("aria-current", "true");
      else line.removeAttribute("aria-current");
      say(name.firstChild, run.name);
      state.firstChild.className = `state ${css}`;
      say(state.firstChild, word);
      say(round, `${run.round_index} of ${run.rounds}`);
      score.dataset.name = measureOf(run).word;
      say(score, scored(run, measureOf(run)));
      say(nats, loss(run.loss));
      say(here, run.phase === "finished" ? `${run.devices} took part` : `${run.here} of ${run.devices}`);
    },
  );
}

/** Everything about one run. */
export function showRun(run, rounds, now_s, isOperator) {
  find("run").hidden = !run;
  if (!run) return;
  say(find("run-title"), run.name);
  say(find("run-said"), said(run));
  const asked = Object.entries(run.tags).map(([key, value]) => `${key}=${value}`);
  const facts = [`base ${run.base}`, `adapter ${run.adapter}`, `id ${run.run_id}`];
  if (asked.length) facts.push(`devices with ${asked.join(", ")}`);
  const best = rounds.find((one) => one.round_index === run.best_round);
  if (best && best[measureOf(run).key] !== null) facts.push(`best ${scored(best, measureOf(run))} after round ${best.round_index}`);
  if (run.privacy) facts.push(`privacy: ${run.privacy}`);
  if (run.secure_aggregation) facts.push(`secure aggregation (${run.secure_aggregation}): only sums of updates are seen`);
  say(find("run-facts"), facts.join(" · "));
  find("run-adapter").hidden = run.round_index === 0;
  find("run-adapter").href = `/v1/operator/runs/${run.run_id}/adapter`;
  say(find("run-adapter"), `Download the adapter (round ${run.kept_round}, a PEFT folder)`);
  const isOver = run.phase === "finished";
  find("actions").hidden = !isOperator;
  find("pause").hidden = isOver || run.phase === "paused";
  find("resume").hidden = run.phase !== "paused";
  find("stop").hidden = isOver;
  showStep(run, now_s);
  showRounds(rounds, measureOf(run));
  showTrouble(run);
}

function said(run) {
  const step = run.step;
  if (run.phase === "finished") {
    const how = { stopped: "Stopped by an operator", patience: "Stopped early" }[run.ended] || "Finished";
    const why = run.ended === "patience" ? `: ${run.trouble}` : "";
    return `${how} after ${counted(run.round_index, "round")}${why}.`;
  }
  if (run.phase === "paused") {
    const where = step ? `in ${place(step)}` : `before round ${Math.min(run.round_index + 1, run.rounds)}`;
    const why = run.trouble ? ` ${run.trouble}.` : "";
    return `Paused ${where}: nobody is given work until it is resumed.${why}`;
  }
  if (!step) {
    const missing = run.needed - run.here;
    return missing > 0
      ? `Waiting for ${counted(missing, "more device")}: ${run.here} of ${run.needed} are here.`
      : "Waiting for devices that can go on.";
  }
  const failing =
    (run.is_failing ? " Every device that was asked has failed at it." : "") +
    (run.trouble ? ` Last trouble: ${run.trouble}.` : "");
  const of = step.round_index ? ` of ${run.rounds}` : "";
  return `Now: ${place(step)}${of}.${failing}`;
}

function showStep(run, now_s) {
  const step = run.step;
  find("step").hidden = !step;
  if (!step) return;
  const bar = find("answers");
  const parts = [
    ["done", 0, step.answers - step.failed],
    ["failed", step.answers - step.failed, step.failed],
    ["none", step.answers, step.asked - step.answers],
  ];
  keep(
    bar,
    parts,
    ([css]) => css,
    ([css]) => {
      const part = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      part.setAttribute("class", css);
      part.setAttribute("height", 12);
      return part;
    },
    (part, [, from, count]) => {
      part.setAttribute("x", (600 * from) / Math.max(1, step.asked));
      part.setAttribute("width", (600 * count) / Math.max(1, step.asked));
    },
  );
  const failed = step.failed ? `, ${step.failed} of them failed` : "";
  const left_s = step.closes_at_s - now_s;
  const closes = left_s > 0 ? `closes in ${span(left_s)} at the latest` : "closes now";
  const opened = `opened ${ago(now_s - step.opened_at_s)}`;
  const times = run.phase === "paused" ? opened : `${opened}, ${closes}`;
  say(find("answers-said"), `${step.answers} of ${step.asked} answered${failed}; ${times}.`);
  find("missing").hidden = step.missing.length === 0;
  const listed = [...step.missing];
  if (step.more) listed.push({ device_id: "more", name: `and ${step.more} more` });
  keep(
    find("missing-list"),
    listed,
    (one) => one.device_id,
    () => make("li"),
    (item, one) => {
      const silent_s = one.last_seen_s ? now_s - one.last_seen_s : 0;
      const notes = [];
      if (one.is_late) notes.push("late");
      if (silent_s > SILENT_S) notes.push(`silent for ${span(silent_s)}`);
      item.className = silent_s > SILENT_S ? "silent" : one.is_late ? "late" : "";
      say(item, [one.name, notes.join(", ")].filter(Boolean).join(": "));
    },
  );
}

function last(rows, what) {
  const newest = rows[rows.length - 1];
  return newest ? `${what} ${newest.round_index}` : "";
}

function lineOf(rounds, name, more) {
  const rows = rounds
    .filter((one) => one[name] !== null)
    .map((one) => ({
      index: one.round_index,
      value: one[name],
      error: `${name}_error` in one ? one[`${name}_error`] : 0,
      round_index: one.round_index,
    }));
  if (!rows.length) return { id: name, rows };
  const [first, end] = [rows[0], rows[rows.length - 1]];
  const told = `${more.write(end.value, end.error)} in round ${end.index}`;
  const from = rows.length > 1 ? `, from ${more.write(first.value, first.error)} in round ${first.index}` : "";
  return { id: name, css: LINES[name] || name, rows, ...more, title: `${more.title}: ${more.write(end.value, end.error)}`, said: told + from };
}

function showRounds(rounds, measure) {
  const trained = rounds.filter((one) => one.answers > 0);
  find("no-rounds").hidden = trained.length > 0;
  find("rounds-details").hidden = trained.length === 0;
  const newest = trained[trained.length - 1];
  const moved = newest ? newest.up_bytes + newest.down_bytes : 0;
  const spent = newest ? PHASES.reduce((sum, part) => sum + part.of(newest), 0) : 0;
  charts.show(find("charts"), [
    lineOf(rounds, measure.key, { title: measure.title, most: 1, write: within, scale: () => [0.01, " %"] }),
    lineOf(rounds, "perplexity", { title: "Perplexity", write: loss, scale: () => [1, ""] }),
    lineOf(rounds, "loss", { title: "Training loss", write: loss, scale: () => [1, ""] }),
    {
      id: "traffic",
      title: "Traffic of all devices",
      said: `${bytes(moved)} ${last(trained, "in round")}`,
      rows: trained.some((one) => one.up_bytes + one.down_bytes > 0) ? trained : [],
      parts: WAYS,
      write: bytes,
      scale: bytesScale,
    },
    {
      id: "phases",
      title: "Seconds of all devices",
      said: `${span(spent)} ${last(trained, "in round")}`,
      rows: spent || trained.some((one) => PHASES.some((part) => part.of(one) > 0)) ? trained : [],
      parts: PHASES,
      write: span,
      scale: (most) => (most >= 7200 ? [3600, " h"] : most >= 120 ? [60, " min"] : [1, " s"]),
    },
  ]);
  if (find("rounds-details").open) tableOf(trained, measure);
}

const middle = (one, { key }) =>
  one[key] === null || one[`${key}_median`] === null ? "" : ` (median ${within(one[`${key}_median`], 0)})`;

function tableOf(rounds, measure) {
  const shown = rounds.slice(-MOST_ROWS).reverse();
  const cut = rounds.length > shown.length ? ` The newest ${shown.length} of ${rounds.length} rounds.` : "";
  const kernel = rounds.every((one) => one.is_by_kernel);
  const how = kernel ? "bytes of TCP, by the devices' kernels" : "bodies alone";
  const drawn = rounds.some((one) => one[measure.key] !== null && one[`${measure.key}_error`] !== 0);
  say(find("rounds-score"), measure.word);
  const error = drawn ? " ±: standard error, where a cohort of devices evaluates for all." : "";
  const note = `Sums over all devices; traffic: ${how}. Round 0 is the evaluation before any training.${error}`;
  say(find("rounds-note"), note + cut);
  keep(
    find("rounds").tBodies[0],
    shown,
    (one) => one.round_index,
    () => {
      const line = make("tr");
      const head = make("th");
      head.scope = "row";
      line.append(head, ...Array.from({ length: 11 }, () => make("td")));
      return line;
    },
    (line, one) => {
      const failed = one.failed ? `, ${one.failed} failed` : "";
      const late = one.late ? `, ${one.late} late` : "";
      const figures = [
        String(one.round_index),
        scored(one, measure) + middle(one, measure),
        loss(one.loss),
        `${one.answers}${failed}${late}`,
        bytes(one.up_bytes),
        bytes(one.down_bytes),
        ...PHASES.map((part) => (part.of(one) > 0 ? span(part.of(one)) : "")),
      ];
      figures.forEach((text, at) => say(line.cells[at], text));
    },
  );
}

const MEMBERSHIPS = { joined: "takes part", declined: "declined", home: "is done" };

/** Devices of a run, each with its newest evaluation on its own test texts. */
export function showMembers(run, members, isAll) {
  const table = find("members");
  const measure = measureOf(run);
  say(find("members-score"), measure.word);
  const cut = isAll ? "" : ` The first ${members.length} by name.`;
  say(find("members-note"), `${measure.title} on each device's own test texts, at its newest evaluation.${cut}`);
  keep(
    table.tBodies[0],
    members,
    (one) => one.device_id,
    () => row(table, ["", "number", "number", ""]),
    (line, one) => {
      const [name, score, round, state] = line.cells;
      say(name, one.name);
      score.dataset.name = measure.word;
      say(score, one.scored ? scored({ ...one.scored, [`${measure.key}_error`]: 0 }, measure) : "");
      say(round, one.scored ? String(one.scored.round_index) : "");
      say(state, MEMBERSHIPS[one.membership]);
    },
  );
}

function showTrouble(run) {
  const table = find("trouble");
  table.hidden = run.trouble.length === 0;
  find("no-trouble").hidden = run.trouble.length > 0;
  keep(
    table.tBodies[0],
    run.trouble,
    (one) => one.key,
    () => row(table, ["", "", "broad"]),
    (line, one) => {
      say(line.cells[0], one.name);
      say(line.cells[1], one.kind ? place(one) : "when it was invited");
      say(line.cells[2], one.said);
    },
  );
}

/** What a person who cannot see the page should hear of a change; empty where nothing matters. */
export function newsOf(before, run) {
  if (!before) return "";
  const [word] = stateOf(run);
  if (before.phase !== run.phase && (run.phase === "finished" || run.phase === "paused" || before.phase === "paused")) {
    return `${run.name}: ${word}`;
  }
  const [old] = before.trouble;
  const [fresh] = run.trouble;
  if (fresh && (!old || old.key !== fresh.key)) {
    return `${run.name}: ${fresh.name}, ${fresh.kind ? doing(fresh.kind) : "invitation"}: ${fresh.said}`;
  }
  const measure = measureOf(run);
  if (run.accuracy_round !== before.accuracy_round && run[measure.key] !== null) {
    return `${run.name}: round ${run.accuracy_round}, ${measure.word} ${scored(run, measure)}`;
  }
  return "";
}
