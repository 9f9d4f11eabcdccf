// Charts as SVG. Colours are in the style sheet, and nothing is said by colour alone.

import { micros } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function svg(width, height, label, more, ...children) {
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, ...more }, ...children);
}

function path(points) {
  let pen = "M";
  const steps = [];
  for (const point of points) {
    if (point === null) { pen = "M"; continue; }
    steps.push(`${pen}${point[0].toFixed(1)} ${point[1].toFixed(1)}`);
    pen = "L";
  }
  return shape("path", { class: "stroke", d: steps.join("") });
}

// A line without axes; `null` is a gap.
export function sparkline(values, label, top = null) {
  const most = top ?? Math.max(1e-9, ...values.filter((value) => value !== null));
  const step = 100 / Math.max(1, values.length - 1);
  const points = values.map((value, at) => (value === null ? null : [at * step, 19 - (18 * value) / most]));
  return svg(100, 20, label, { preserveAspectRatio: "none" }, path(points));
}

// A line over time with the largest value and the times of both ends. Samples: [seconds, value or null].
export function timeline(samples, label, format, top = null) {
  const most = top ?? Math.max(1e-9, ...samples.map(([, value]) => value ?? 0));
  const [first, last] = [samples[0][0], samples[samples.length - 1][0]];
  const points = [];
  samples.forEach(([time, value], at) => {
    // The daemon did not run meanwhile.
    if (at > 0 && time - samples[at - 1][0] > 60) points.push(null);
    points.push(value === null ? null : [(240 * (time - first)) / Math.max(1, last - first), 66 - (50 * value) / most]);
  });
  const clock = (time) => new Date(time * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const text = (x, y, anchor, words) => shape("text", { x, y, "text-anchor": anchor }, words);
  return svg(240, 82, label, { class: "chart" }, shape("line", { class: "axis", x1: 0, x2: 240, y1: 66, y2: 66 }), path(points),
    text(0, 11, "start", `${label}, up to ${format(most)}`), text(0, 79, "start", clock(first)), text(240, 79, "end", clock(last)));
}

// Upper bounds of the ranges of latencies in microseconds; the last range has none.
const BOUNDS = Array.from({ length: 20 }, (_, at) => [5, 10, 20][at % 3] * 10 ** Math.floor(at / 3));

// Time from left to right, latencies from bottom to top. Columns: counts by range, or null.
export function heatMap(columns, width) {
  const used = columns.filter((column) => column !== null);
  const rows = BOUNDS.map((_, at) => at).concat(BOUNDS.length).filter((row) => used.some((column) => column[row] > 0));
  if (rows.length === 0) return null;
  const [low, high] = [rows[0], rows[rows.length - 1]];
  const most = Math.max(...used.map((column) => Math.max(...column)));
  const cell = 320 / width;
  const cells = [];
  columns.forEach((column, at) => {
    for (let row = low; column !== null && row <= high; row += 1) {
      if (column[row] === 0) continue;
      // A single request is visible among thousands.
      const strength = 0.25 + (0.75 * Math.log1p(column[row])) / Math.log1p(most);
      const x = 80 + (width - columns.length + at) * cell;
      const made = { class: "fill", x: x.toFixed(2), y: (high - row) * 14, width: cell.toFixed(2), height: 13, "fill-opacity": strength.toFixed(2) };
      const bound = row < BOUNDS.length ? `up to ${micros(BOUNDS[row])}` : "longer";
      cells.push(shape("rect", made, shape("title", {}, `${column[row]} requests, ${bound}`)));
    }
  });
  for (let row = low; row <= high; row += 1) {
    const words = row < BOUNDS.length ? `≤ ${micros(BOUNDS[row])}` : "longer";
    cells.push(shape("text", { x: 74, y: (high - row) * 14 + 11, "text-anchor": "end" }, words));
  }
  return svg(400, (high - low + 1) * 14, "Latencies over time", { class: "chart" }, ...cells);
}

// Miss ratios by the size of the cache on a logarithmic axis, with the present size marked.
export function missCurve(rows, present, format) {
  const logs = rows.map((row) => Math.log2(row.bytes)).concat(Math.log2(present));
  const [low, high] = [Math.min(...logs), Math.max(...logs)];
  const x = (size) => 40 + (350 * (Math.log2(size) - low)) / Math.max(1e-9, high - low);
  const y = (share) => 112 - 104 * share;
  const text = (at, height, anchor, words) => shape("text", { x: at, y: height, "text-anchor": anchor }, words);
  const mark = x(present);
  return svg(400, 132, "Miss ratio by size of the cache", { class: "chart" },
    shape("line", { class: "axis", x1: 40, x2: 390, y1: y(0), y2: y(0) }), shape("line", { class: "axis", x1: 40, x2: 40, y1: y(1), y2: y(0) }),
    text(36, 16, "end", "100 %"), text(36, 112, "end", "0 %"),
    path(rows.map((row) => [x(row.bytes), y(1 - row.share)])), shape("line", { class: "mark", x1: mark, x2: mark, y1: y(1), y2: y(0) }),
    text(mark > 215 ? mark - 4 : mark + 4, 20, mark > 215 ? "end" : "start", `now ${format(present)}`),
    text(40, 127, "start", format(2 ** low)), text(390, 127, "end", format(2 ** high)));
}
