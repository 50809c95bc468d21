// Figures and codes as people read them, and the few ways in which this page makes elements.
// What comes from outside (names, tags) becomes text nodes alone, never markup.

const STATES = {
  waiting: ["waiting for devices", ""],
  train: ["training", "good"],
  label: ["labelling", "good"],
  evaluate: ["evaluating", "good"],
  paused: ["paused", "stop"],
  finished: ["finished", ""],
  stopped: ["stopped", "stop"],
};
const DOING = { train: "training", label: "labelling", evaluate: "evaluation" };

/** A run's phase in words, and the class of its colour. */
export const stateOf = (run) => STATES[run.is_stopped ? "stopped" : run.phase] || [run.phase, ""];
/** What a step does, as a noun. */
export const doing = (kind) => DOING[kind] || kind;

/** A step's name. */
export function place(step) {
  const again = step.attempt > 1 ? `, attempt ${step.attempt}` : "";
  if (step.kind === "evaluate" && step.round_index === 0) return `evaluation before round 1${again}`;
  const before = step.kind === "label" ? "before " : "";
  return `${doing(step.kind)}, ${before}round ${step.round_index}${again}`;
}

/** The decimal unit for bytes up to `most`: its size and its name. */
export function bytesScale(most) {
  const units = [" B", " kB", " MB", " GB", " TB", " PB"];
  const power = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(1, most)) / 3)));
  return [1000 ** power, units[power]];
}

/** Bytes with three digits. */
export function bytes(count) {
  if (count < 1000) return `${count} B`;
  const [size, unit] = bytesScale(count);
  return `${(count / size).toPrecision(3)}${unit}`;
}

/** Bytes of memory, by binary steps. */
export function memory(count) {
  if (!count) return "";
  const [value, unit] = count >= 2 ** 30 ? [count / 2 ** 30, "GiB"] : [count / 2 ** 20, "MiB"];
  return `${value >= 100 ? Math.round(value) : value.toFixed(1).replace(/\.0$/, "")} ${unit}`;
}

/** Seconds as people say them. */
export function span(seconds) {
  if (seconds < 0.95) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (seconds < 9.95) return `${seconds.toFixed(1).replace(/\.0$/, "")} s`;
  if (seconds < 119.5) return `${Math.round(seconds)} s`;
  if (seconds < 7170) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

/** How long ago something was, to the second. */
export const ago = (seconds) => (seconds < 5 ? "just now" : `${span(Math.round(seconds))} ago`);

/** A share between 0 and 1 in per cent. */
export const share = (value) => (value === null ? "" : `${(value * 100).toFixed(1)} %`);
/** A share with its standard error: of 0 there is none to tell, of null nobody can tell it. */
export function within(value, error) {
  if (value === null || error === 0) return share(value);
  return `${(value * 100).toFixed(1)} ± ${error === null ? "?" : (error * 100).toFixed(1)} %`;
}
/** What runs of a kind of task go by: the name of its figures, and how people call them. */
export const measureOf = (run) =>
  run.kind === "tagging" ? { key: "f1", word: "F1", title: "F1 of entities" } : { key: "accuracy", word: "accuracy", title: "Accuracy" };
/** A run's score, or a round's, with its standard error; of masked words their perplexity beside it. */
export function scored(one, { key }) {
  const beside = one.perplexity === null ? "" : ` (perplexity ${loss(one.perplexity)})`;
  return within(one[key], one[`${key}_error`]) + beside;
}
export const loss = (value) => (value === null ? "" : value.toPrecision(3));
/** A count and its noun. */
export const counted = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

export const find = (id) => document.getElementById(id);

/** Set an element's text, where it is another than before: a screen reader hears changes alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A new element with a class, text and children. */
export function make(name, css = "", text = "", ...children) {
  const element = document.createElement(name);
  if (css) element.className = css;
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

/** Keep one child per item, in their order: what is there stays there, and so does the focus. */
export function keep(parent, items, keyOf, create, update) {
  const there = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = there.get(key);
    there.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    const next = before ? before.nextSibling : parent.firstChild;
    if (child !== next) parent.insertBefore(child, next);
    update(child, item);
    before = child;
  }
  for (const child of there.values()) child.remove();
}

/** A row of a table that lies as cards on a narrow screen; roles hold where its display changes. */
export function row(table, cells) {
  const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
  const made = cells.map((css, place) => {
    const cell = make(place ? "td" : "th", css);
    cell.setAttribute("role", place ? "cell" : "rowheader");
    if (place) cell.dataset.name = heads[place];
    else cell.scope = "row";
    return cell;
  });
  const line = make("tr", "", "", ...made);
  line.setAttribute("role", "row");
  return line;
}
