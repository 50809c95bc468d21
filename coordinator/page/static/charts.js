// Small charts as SVG, drawn from figures by round. Each says in words what it shows; the table
// under them holds every figure.

import { keep, make } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const [HEIGHT, LEFT, TOP, BOTTOM] = [180, 52, 12, 154];
let right = 332; // of the chart that is drawn: as wide as there is room, so that its text is as large
const drawn = new WeakMap(); // figure -> what it shows
const MOST_BARS = 48; // more rounds than that share bars

function draw(name, attributes, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  return element;
}

/** Round figures from 0 up to at least `most`, three to six of them. */
export function ticks(most) {
  if (!(most > 0)) return [0, 1];
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((one) => one * power >= rough) * power;
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, place) => place * step);
}

function frame(svg, most, scale, first, last) {
  const [size, unit] = scale(most);
  const marks = ticks(most / size).map((mark) => mark * size);
  const top = marks[marks.length - 1];
  const y = (value) => BOTTOM - ((BOTTOM - TOP) * value) / top;
  const x = (index) =>
    last === first ? (LEFT + right) / 2 : LEFT + 6 + ((right - LEFT - 12) * (index - first)) / (last - first);
  for (const mark of marks) {
    svg.append(draw("line", { class: "tick", x1: LEFT, x2: right, y1: y(mark), y2: y(mark) }));
    const at = { class: "axis", x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" };
    svg.append(draw("text", at, `${+(mark / size).toPrecision(3)}${unit}`));
  }
  if (first === undefined) return [x, y]; // bars name their rounds themselves
  const middle = Math.round((first + last) / 2);
  for (const index of new Set([first, ...(last - first > 3 ? [middle] : []), last])) {
    const at = { class: "axis", x: x(index), y: BOTTOM + 16, "text-anchor": "middle" };
    svg.append(draw("text", at, String(index)));
  }
  return [x, y];
}

/** A line over the rounds that have the figure. */
function line(svg, chart, points) {
  const most = chart.most || Math.max(...points.map((point) => point.value));
  const [x, y] = frame(svg, most, chart.scale, points[0].index, points[points.length - 1].index);
  const path = points.map((p, place) => `${place ? "L" : "M"}${x(p.index).toFixed(1)} ${y(p.value).toFixed(1)}`);
  svg.append(draw("path", { class: `line ${chart.css}`, d: path.join("") }));
  for (const p of points.filter((one) => one.error)) {
    const [low, high] = [Math.max(0, p.value - p.error), Math.min(most, p.value + p.error)];
    const at = { x1: x(p.index), x2: x(p.index), y1: y(low), y2: y(high) };
    svg.append(draw("line", { class: `error ${chart.css}`, ...at }));
  }
  const dots = points.length > 40 ? points.slice(-1) : points;
  for (const p of dots) {
    const dot = draw("circle", { class: chart.css, cx: x(p.index), cy: y(p.value), r: 3 });
    dot.append(draw("title", {}, `round ${p.index}: ${chart.write(p.value, p.error)}`));
    svg.append(dot);
  }
}

/** Neighbouring rounds together, so that at most so many bars stand side by side. */
export function binned(rows, parts, most = MOST_BARS) {
  const size = Math.ceil(rows.length / most);
  const bins = [];
  for (let at = 0; at < rows.length; at += size) {
    const some = rows.slice(at, at + size);
    const mean = (part) => some.reduce((sum, one) => sum + part.of(one), 0) / some.length;
    const [first, last] = [some[0].round_index, some[some.length - 1].round_index];
    bins.push({ first, last, values: parts.map(mean) });
  }
  return bins;
}

/** Stacked bars, one for each round; of long runs the mean of neighbouring ones. */
function bars(svg, chart, rows) {
  const bins = binned(rows, chart.parts);
  const most = Math.max(...bins.map((bin) => bin.values.reduce((a, b) => a + b, 0)));
  const wide = (right - LEFT - 8) / bins.length;
  const [, y] = frame(svg, most, chart.scale);
  const named = new Set([0, bins.length > 4 ? Math.floor((bins.length - 1) / 2) : 0, bins.length - 1]);
  bins.forEach((bin, place) => {
    const left = LEFT + 4 + wide * place;
    let foot = 0;
    const told = bin.values.map((value, part) => [chart.parts[part], value]).filter(([, value]) => value > 0);
    const group = draw("g", {});
    const where = bin.first === bin.last ? `round ${bin.first}` : `rounds ${bin.first} to ${bin.last}, mean`;
    const said = told.map(([part, value]) => `${part.name} ${chart.write(value)}`).join(", ");
    group.append(draw("title", {}, `${where}: ${said || "nothing"}`));
    for (const [part, value] of told) {
      const [from, to] = [y(foot), y(foot + value)];
      const width = Math.max(1, Math.min(26, wide * 0.8));
      const at = { x: left + (wide - width) / 2, y: to, width, height: Math.max(0, from - to) };
      group.append(draw("rect", { class: part.css, ...at }));
      foot += value;
    }
    svg.append(group);
    if (named.has(place)) {
      const at = { class: "axis", x: left + wide / 2, y: BOTTOM + 16, "text-anchor": "middle" };
      svg.append(draw("text", at, String(bin.first)));
    }
  });
}

function key(parts) {
  return parts.map((part) => {
    const chip = draw("svg", { viewBox: "0 0 11 11", "aria-hidden": "true" });
    chip.append(draw("rect", { class: part.css, width: 11, height: 11 }));
    return make("li", "", "", chip, make("span", "", part.name));
  });
}

function create(chart) {
  const svg = draw("svg", { role: "img" });
  const figure = make("figure", "", "", make("figcaption"), svg);
  if (chart.parts) figure.append(make("ul", "key"));
  return figure;
}

function update(figure, chart) {
  const width = Math.max(260, figure.clientWidth);
  const now = JSON.stringify([chart.title, chart.said, width, chart.rows]);
  if (drawn.get(figure) === now) return;
  drawn.set(figure, now);
  right = width - 8;
  figure.querySelector("figcaption").textContent = chart.title;
  const svg = figure.querySelector("svg");
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.setAttribute("aria-label", `${chart.title}. ${chart.said}`);
  if (chart.parts) {
    const used = chart.parts.filter((part) => chart.rows.some((one) => part.of(one) > 0));
    figure.querySelector("ul").replaceChildren(...key(used));
    bars(svg, chart, chart.rows);
  } else {
    line(svg, chart, chart.rows);
  }
}

/** Show these charts, those alone that have something to show. */
export function show(parent, charts) {
  const full = charts.filter((chart) => chart.rows.length);
  keep(parent, full, (chart) => chart.id, create, update);
}
