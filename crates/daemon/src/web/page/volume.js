// The details of one volume.

import { heatMap, missCurve, timeline } from "./charts.js";
import { UNKNOWN, bytes, count, element, megabytes, micros, percent, table } from "./words.js";

const byId = (id) => document.getElementById(id);
const note = (text) => element("p", { class: "faint" }, text);

export const COLUMNS = 120;

export function showHeat(columns) {
  const kind = byId("kind").value;
  const counts = columns.map((volume) => volume?.latency[kind].counts.ranges ?? null);
  byId("heat").replaceChildren(heatMap(counts, COLUMNS) ?? note("No such requests in the last two minutes."));
}

export function showMisses(report, reasons) {
  const total = report.served.reads.origin;
  const rows = reasons.filter(({ group, name }) => group === "miss" && report.why.miss[name] > 0)
    .map(({ name, help }) => [help, name, report.why.miss[name]]).sort((one, other) => other[2] - one[2])
    .map(([help, name, number]) => [help, name, count(number), percent(number / Math.max(1, total))]);
  const all = report.served.reads.total;
  const shown = rows.length > 0 ? table(["The data was", "reason", "reads", "share"], rows, 2) : note("No read missed.");
  byId("misses").replaceChildren(note(`${count(total)} of ${count(all)} reads since the volume was started needed the origin.`), shown);
}

export function showWear(report, reasons) {
  const size = report.block_size;
  const kept = report.served.writes.total > 0 && report.mode === "writeback" ? report.bytes.user_written : null;
  const rows = [["everything written for this volume", bytes(report.bytes.cache_written)],
    ["filled from the origin after misses", bytes(report.blocks.filled * size)],
    ["moved on within the log, because still wanted", bytes(report.blocks.carried_on * size)]];
  if (kept !== null) rows.push(["written by clients, including what went elsewhere", bytes(kept)]);
  rows.push(["written to the device for all of its volumes", bytes(report.devices.cache.write.bytes)]);
  const words = { refused: "not admitted", evicted: "evicted", invalidated: "invalidated", written_back: "written back" };
  for (const { group, name, help } of reasons) {
    const blocks = words[group] ? report.why[group][name] : 0;
    if (blocks > 0) rows.push([`${words[group]}: ${help}`, bytes(blocks * size)]);
  }
  byId("wear").replaceChildren(table(["since the volume was started", "bytes"], rows));
}

export function showDevices(report, volume) {
  const rows = [];
  for (const [device, path] of [["cache", report.cache.path], ["origin", report.origin.path]]) {
    for (const kind of ["read", "write", "sync", "discard"]) {
      const now = volume?.devices[device][kind];
      const errors = report.devices[device][kind].errors;
      rows.push([kind === "read" ? `${device} ${path}` : "", kind, now ? count(now.iops) : UNKNOWN,
        now ? megabytes(now.bytes_per_second) : UNKNOWN, micros(now?.latency.p99_us), count(errors)]);
    }
  }
  const used = report.cache.size > 0 ? percent(report.cache.used / report.cache.size) : UNKNOWN;
  byId("devices").replaceChildren(note(`The cache is filled by ${used} of ${bytes(report.cache.size)}.`),
    table(["device", "", "IOPS", "MB/s", "p99", "errors"], rows, 2));
}

export async function showCurve(name) {
  const answer = await fetch(`/v1/volumes/${encodeURIComponent(name)}/curve`);
  const curve = await answer.json();
  if (!answer.ok) return byId("curve").replaceChildren(note(curve.error.message));
  const share = (row) => ({ bytes: row.bytes, ...(row.reads ?? row.all) });
  const rows = curve.curve.map(share).filter((row) => row.bytes > 0);
  const present = share(curve.present);
  if (rows.length < 2 || present.bytes === 0 || curve.accesses === 0) return byId("curve").replaceChildren(note("Too few requests to tell."));
  return byId("curve").replaceChildren(missCurve(rows, present.bytes, bytes), note(benefit(curve.rows.map(share), present)));
}

// Says what the next size is worth.
function benefit(rows, present) {
  const next = rows.find((row) => row.bytes >= present.bytes * 1.5);
  const now = `With ${bytes(present.bytes)}, ${percent(1 - present.share)} of reads miss`;
  if (!next) return `${now}. A larger cache is worth nothing: everything that was used fits.`;
  const gain = next.share - present.share;
  if (gain <= Math.max(next.error, present.error)) return `${now}. With ${bytes(next.bytes)} it would be about the same: the difference is within the error of the estimate.`;
  return `${now}; with ${bytes(next.bytes)} it would be ${percent(1 - next.share)}, so ${percent(gain)} of all reads would be spared the origin.`;
}

export function showSettings(report, settings) {
  const rows = settings.map(({ name, help, default: usual }) => {
    const value = report.settings[name];
    const text = value === undefined || value === null ? UNKNOWN : value === true ? "on" : value === false ? "off" : String(value);
    return [name, text, String(usual), help];
  });
  byId("settings").replaceChildren(table(["setting", "value", "default", "meaning"], rows, 4));
}

export function showHistory(name, samples) {
  const points = samples.map(({ time, volumes }) => [time, volumes.find((volume) => volume.name === name)]);
  if (points.length < 2) return byId("history").replaceChildren(note("The first samples come in half a minute."));
  const line = (field, label, format, top) => timeline(points.map(([time, point]) => [time, point?.[field] ?? null]), label, format, top);
  return byId("history").replaceChildren(line("hit_ratio", "Hit ratio", percent, 1), line("iops", "IOPS", count),
    line("bytes_per_second", "MB/s", megabytes), line("p99_us", "p99", micros), line("dirty_bytes", "Dirty data", bytes));
}
