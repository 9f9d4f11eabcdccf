// Numbers and names in words, and elements that hold them as text.

export const UNKNOWN = "–";

// Returns an element. Children are elements or texts; texts never become markup.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

// Returns a table. Columns after the first `texts` hold numbers.
export function table(heads, rows, texts = 1) {
  const cell = (tag) => (value, at) => element(tag, at < texts ? {} : { class: "number" }, value);
  const line = (tag, values) => element("tr", {}, ...values.map(cell(tag)));
  return element("table", {}, element("thead", {}, line("th", heads)), element("tbody", {}, ...rows.map((row) => line("td", row))));
}

export function bytes(number) {
  if (number === null || number === undefined) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(number) >= 1024 && unit < units.length - 1) { number /= 1024; unit += 1; }
  return `${number >= 100 || unit === 0 ? Math.round(number) : number.toPrecision(3)} ${units[unit]}`;
}

export const count = (number) => (number === null || number === undefined ? UNKNOWN : Math.round(number).toLocaleString("en"));
export const percent = (share) => (share === null || share === undefined ? UNKNOWN : `${(share * 100).toFixed(1)} %`);
export const megabytes = (number) => (number / 1e6).toFixed(number < 1e7 ? 2 : 0);

export function micros(number) {
  if (number === null || number === undefined) return UNKNOWN;
  if (number < 1000) return `${number < 10 ? number.toFixed(1) : Math.round(number)} µs`;
  return number < 1e6 ? `${(number / 1e3).toPrecision(3)} ms` : `${(number / 1e6).toPrecision(3)} s`;
}

export function duration(seconds) {
  if (seconds < 60) return `${Math.ceil(seconds)} s`;
  if (seconds < 3600) return `${Math.ceil(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}

export function timeToClean(volume) {
  const dirty = (volume.dirty_bytes ?? 0) + volume.deferred_bytes;
  if (volume.dirty_bytes === null) return "unknown";
  if (dirty === 0) return "clean";
  const seconds = volume.writeback.seconds_to_clean;
  return seconds === null ? "waits" : duration(seconds);
}
