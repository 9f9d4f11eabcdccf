// Follows the daemon, and shows all volumes and the selected one.

import { sparkline } from "./charts.js";
import { COLUMNS, showCurve, showDevices, showHeat, showHistory, showMisses, showSettings, showWear } from "./volume.js";
import { bytes, count, element, megabytes, micros, percent, table, timeToClean } from "./words.js";

const byId = (id) => document.getElementById(id);
// The last intervals, oldest first; `null` is a gap.
const intervals = [];
const cards = new Map();
let selected = null;
let reports = [];
let [settings, reasons] = [[], []];

const json = async (path) => (await fetch(path)).json();
const columns = (name) => intervals.map((interval) => interval?.volumes.find((volume) => volume.name === name) ?? null);

function select(name) {
  selected = name;
  byId("details").hidden = false;
  byId("details-title").textContent = `Volume ${name}`;
  for (const [other, card] of cards) card.button.setAttribute("aria-pressed", String(other === name));
  showSelected();
  showSlow();
}

// Makes the part of the page that stands for a volume, whose numbers change in place, so that the focus stays.
function makeCard(name) {
  const button = element("button", { type: "button", "aria-pressed": "false" }, name);
  button.addEventListener("click", () => select(name));
  const card = { button, state: element("span"), sizes: element("span", { class: "faint" }), error: element("p", { class: "error" }), numbers: new Map() };
  const list = element("dl", { class: "numbers" });
  for (const label of ["Hit ratio", "IOPS", "MB/s", "p50", "p99", "Dirty", "Clean in"]) {
    const [value, line] = [element("dd"), element("div")];
    list.append(element("div", {}, element("dt", {}, label), value, line));
    card.numbers.set(label, { value, line });
  }
  card.root = element("article", { class: "volume" }, element("h3", {}, button, card.state, card.sizes), list, card.error);
  return card;
}

function quantile(volume, name) {
  const { read, write } = volume.latency;
  // The slower kind, so that nothing is averaged away.
  const both = [read[name], write[name]].filter((number) => number !== null);
  return both.length === 0 ? null : Math.max(...both);
}

function fillCard(card, report, history) {
  const volume = history[history.length - 1];
  card.state.textContent = report.waiting_for ? `waits for ${report.waiting_for.device}` : report.state;
  card.sizes.textContent = `${report.mode}, ${bytes(report.origin.size)} on ${report.origin.path}, cache ${report.cache.path}`;
  card.error.textContent = report.errors.last ? `Last error: ${report.errors.last}` : "";
  if (!volume) return;
  const number = (label, text, value, top) => {
    const place = card.numbers.get(label);
    place.value.textContent = text;
    if (value) place.line.replaceChildren(sparkline(history.map((one) => (one === null ? null : value(one))), `${label} in the last two minutes`, top));
  };
  const both = (one) => one.read_bytes_per_second + one.write_bytes_per_second;
  const dirty = (one) => (one.dirty_bytes === null ? null : one.dirty_bytes + one.deferred_bytes);
  number("Hit ratio", percent(volume.hit_ratio), (one) => one.hit_ratio, 1);
  number("IOPS", count(volume.iops), (one) => one.iops);
  number("MB/s", megabytes(both(volume)), both);
  number("p50", micros(quantile(volume, "p50_us")), (one) => quantile(one, "p50_us"));
  number("p99", micros(quantile(volume, "p99_us")), (one) => quantile(one, "p99_us"));
  number("Dirty", bytes(dirty(volume)), dirty);
  number("Clean in", timeToClean(volume));
}

function showAll() {
  const names = new Set(reports.map((report) => report.name));
  for (const [name, card] of cards) if (!names.has(name)) { card.root.remove(); cards.delete(name); }
  for (const report of reports) {
    if (!cards.has(report.name)) {
      cards.set(report.name, makeCard(report.name));
      byId("volumes").append(cards.get(report.name).root);
    }
    fillCard(cards.get(report.name), report, columns(report.name));
  }
  if (selected !== null && !names.has(selected)) { selected = null; byId("details").hidden = true; }
  if (selected === null && reports.length > 0) select(reports[0].name);
  else showSelected();
}

function showSelected() {
  const report = reports.find((one) => one.name === selected);
  if (!report) return;
  const history = columns(selected);
  showHeat(history);
  showMisses(report, reasons);
  showWear(report, reasons);
  showDevices(report, history[history.length - 1]);
}

// What changes rarely, or costs more.
async function showSlow() {
  const name = selected;
  const report = reports.find((one) => one.name === name);
  if (!report) return;
  showSettings(report, settings);
  const { samples } = await json("/history");
  if (name === selected) showHistory(name, samples);
  await showCurve(name);
}

async function showEvents() {
  const { events } = await json("/v1/events?limit=100");
  const rows = events.reverse().map((event) => [new Date(event.time).toLocaleString(), event.severity, event.message]);
  byId("events").replaceChildren(table(["time", "", "event"], rows, 3));
}

async function showDaemon() {
  const [daemon, memory] = [await json("/v1/daemon"), await json("/v1/memory")];
  const used = Object.values(memory.used_bytes).reduce((sum, part) => sum + part, 0);
  byId("daemon").textContent = `${daemon.version}, ${daemon.ready ? "ready" : "starting"}, memory ${bytes(used)} of ${bytes(memory.limit_bytes)}`;
}

function follow() {
  const stream = new EventSource("/live");
  stream.addEventListener("message", ({ data }) => {
    const message = JSON.parse(data);
    reports = message.reports;
    intervals.push(message.interval);
    if (intervals.length > COLUMNS) intervals.shift();
    byId("connection").textContent = reports.length > 0 ? "Live" : "Live; there are no volumes";
    showAll();
  });
  stream.addEventListener("error", () => {
    intervals.push(null);
    byId("connection").textContent = "The daemon does not answer; trying again";
    // A browser does not try again by itself if it was refused.
    if (stream.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
  });
}

const quietly = (task) => task().catch(() => {});
byId("kind").addEventListener("change", showSelected);
[{ knobs: settings }, reasons] = [await json("/v1/knobs"), await json("/reasons")];
follow();
for (const task of [showEvents, showDaemon]) quietly(task);
setInterval(() => [showEvents, showDaemon, showSlow].forEach(quietly), 10000);
