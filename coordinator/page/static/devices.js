// The table of devices: those that are here first, found by name, tag or run.

import { ago, counted, find, keep, make, memory, row, say } from "./words.js";

const PAGE = 100; // rows that are shown at once
const byName = new Intl.Collator("en", { numeric: true }); // pi-2 before pi-10
let most = PAGE;

const isGone = (device) => device.revoked_at_s !== null;
const tagsOf = (device) => Object.entries(device.tags).map(([key, value]) => (value ? `${key}=${value}` : key));

function found(devices, words) {
  if (!words.length) return devices;
  return devices.filter((device) => {
    const names = device.runs.map((one) => one.run_name);
    const text = [device.name, device.device_id, ...tagsOf(device), ...names].join("\n").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/** The table of devices. */
export function showDevices(devices, now_s, isOperator, revoke) {
  const table = find("devices");
  const here = devices.filter((device) => device.is_here && !isGone(device)).length;
  const words = find("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = found(devices, words);
  chosen.sort((a, b) => rank(a) - rank(b) || byName.compare(a.name, b.name));
  const which = words.length ? `, ${chosen.length} found` : "";
  say(find("devices-said"), `${counted(devices.length, "device")}, ${here} here now${which}.`);
  find("no-devices").hidden = devices.length > 0;
  find("devices-said").hidden = devices.length === 0;
  find("search").hidden = devices.length === 0;
  table.hidden = chosen.length === 0;
  table.tHead.rows[0].lastElementChild.hidden = !isOperator;
  const shown = chosen.slice(0, most);
  keep(table.tBodies[0], shown, (one) => one.device_id, (one) => create(table, one, revoke), (line, one) => update(line, one, now_s, isOperator));
  const more = find("more");
  more.hidden = chosen.length <= most;
  say(more, `Show ${Math.min(PAGE, chosen.length - most)} more of ${chosen.length}`);
}

export function showMore() {
  most += PAGE;
}

const rank = (device) => (isGone(device) ? 2 : device.is_here ? 0 : 1);

function create(table, device, revoke) {
  const line = row(table, ["", "", "broad", "", "broad", "", "", "change"]);
  line.cells[0].append(make("span"), make("small"));
  line.cells[3].append(make("span"), make("small"));
  line.cells[7].removeAttribute("data-name");
  const button = make("button", "small danger", "Revoke");
  button.type = "button";
  button.addEventListener("click", () => revoke(device.device_id));
  line.cells[7].append(button);
  return line;
}

function update(line, device, now_s, isOperator) {
  const [name, seen, joined, room, tags, power, version, change] = line.cells;
  line.className = isGone(device) ? "gone" : "";
  say(name.firstChild, device.name);
  const { facts } = device;
  say(name.lastChild, [facts.board || facts.machine, facts.engine].filter(Boolean).join(", "));
  const silent = device.last_seen_s === null ? "never" : ago(now_s - device.last_seen_s);
  const twice = device.cloned_at_s === null ? "" : ", two lives";
  say(seen, isGone(device) ? "revoked" : silent + twice);
  seen.title = twice && `Two clients ran with copies of its state folder, ${ago(now_s - device.cloned_at_s)}: keep one of them.`;
  keep(joined, device.runs, (one) => one.run_id, () => make("div"), (item, one) => {
    const plan = one.peak_bytes ? `, plan ${memory(one.peak_bytes)}` : "";
    say(item, `${one.run_name}: ${one.said}${plan}`);
  });
  joined.classList.toggle("void", device.runs.length === 0);
  say(room.firstChild, memory(facts.memory_bytes));
  say(room.lastChild, facts.budget_bytes ? `budget ${memory(facts.budget_bytes)}` : "");
  keep(tags, tagsOf(device), (text) => text, () => make("span", "tag"), (item, text) => say(item, text));
  tags.classList.toggle("void", tagsOf(device).length === 0);
  say(power, { true: "mains", false: "battery" }[facts.is_on_mains] || "unknown");
  say(version, facts.smidgen);
  change.hidden = !isOperator;
  const button = change.firstChild;
  button.hidden = isGone(device);
  button.setAttribute("aria-label", `Revoke ${device.name}`);
}
