// The plot: lines, ranges of seeds, labels, and the values below the pointer.

const svg = document.getElementById("plot");
const readout = document.getElementById("readout");
const spoken = document.getElementById("spoken");
const GAP = 15;
const NARROW = 600;
const state = { axis: "time", target: data.target.value, hidden: new Set(), at: null };
let view = null;

function add(parent, name, attributes = {}, text = null) {
  const made = document.createElementNS(svg.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

function colours(element, row) {
  element.style.setProperty("--light", row.light);
  element.style.setProperty("--dark", row.dark);
  return element;
}

function shownRows() {
  return data.rows.filter((row) => row.bands && !state.hidden.has(row.label));
}

// The label of an axis, and by what its numbers are divided.
function axisOf(largest) {
  if (state.axis === "time") return { label: data.timeLabel, unit: 1 };
  if (state.axis === "updates") return { label: "updates merged", unit: 1 };
  const [words, ...units] = state.axis === "energy"
    ? ["energy", ["GJ", 1e9], ["MJ", 1e6], ["kJ", 1e3], ["J", 1]]
    : ["sent and received", ["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]];
  const [name, unit] = units.find(([, size]) => largest >= size) ?? units.at(-1);
  return { label: `${words} (${name})`, unit, name };
}

function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(wanted, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((each) => each * power >= rough * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) {
    found.push(n * step);
  }
  return found;
}

// Whatever more digits there are is the rounding of steps.
function tickText(value) {
  return grouped(String(Number(value.toPrecision(12))));
}

// The numbers of the y axis: places and texts, in per cent, or in powers of ten that are
// far away from 1.
function levels(low, high) {
  const scale = data.metric.share ? 100 : 1;
  const sign = data.metric.share ? "%" : "";
  const found = ticks(low * scale, high * scale, 6);
  const size = Math.max(...found.map(Math.abs));
  const write = size >= 1e7 || (size > 0 && size < 1e-4)
    ? (value) => (value ? Number(value.toPrecision(12)).toExponential() : "0")
    : tickText;
  return found.map((tick) => [tick / scale, write(tick) + sign]);
}

// Heights `gap` apart, as near as can be to those wanted, between two bounds: means of
// pools of those that would overlap.
function spreadOut(wanted, gap, low, high) {
  const order = wanted.map((_, place) => place).sort((a, b) => wanted[a] - wanted[b]);
  const pools = [];
  order.forEach((place, number) => {
    let [middle, size] = [wanted[place] - number * gap, 1];
    while (pools.length && pools.at(-1)[0] > middle) {
      const [before, many] = pools.pop();
      middle = (before * many + middle * size) / (many + size);
      size += many;
    }
    pools.push([middle, size]);
  });
  const flat = pools.flatMap(([middle, size]) => Array(size).fill(middle));
  const top = Math.max(low, high - (wanted.length - 1) * gap);
  const heights = [];
  order.forEach((place, number) => {
    heights[place] = Math.min(Math.max(flat[number], low), top) + number * gap;
  });
  return heights;
}

function layOut(rows) {
  const width = Math.max(svg.parentElement.clientWidth, 240);
  const height = Math.round(Math.min(Math.max(width * 0.48, 300), 520));
  const bands = rows.map((row) => row.bands[state.axis]);
  const right = Math.max(0, ...bands.map((band) => band.x.at(-1)));
  const values = [...bands.flatMap((band) => [...band.low, ...band.high]), state.target];
  let [low, high] = values.reduce(
    ([a, b], value) => [Math.min(a, value), Math.max(b, value)],
    [Infinity, -Infinity],
  );
  // Less is the rounding of what is drawn, and has no numbers for its steps.
  const size = Math.max(Math.abs(low), Math.abs(high));
  const room = (high - low > 1e-9 * size ? high - low : size || 1) * 0.05;
  low = data.metric.share ? Math.max(0, low - room) : low - room;
  high = data.metric.share ? Math.min(1, high + room) : high + room;
  const longest = Math.max(0, ...rows.map((row) => row.label.length));
  const [top, bottom] = [14, height - 46];
  const isLabelled = width >= NARROW && (rows.length - 1) * GAP <= bottom - top;
  const labels = isLabelled ? Math.min(longest * 6.9 + 26, width * 0.34) : 28;
  const numbers = levels(low, high);
  const left = 28 + 7 * Math.max(4, ...numbers.map(([, text]) => text.length));
  const box = { left, top, right: width - labels, bottom };
  const end = right || 1;
  const x = (value) => box.left + (value / end) * (box.right - box.left);
  const y = (value) => box.bottom - ((value - low) / (high - low)) * (box.bottom - box.top);
  const axis = axisOf(right);
  return { rows, width, height, box, isLabelled, end, numbers, x, y, axis };
}

function drawAxes({ box, width, height, end, numbers, x, y, axis }) {
  const frame = add(svg, "g", { class: "axes" });
  for (const [value, text] of numbers) {
    const at = y(value);
    add(frame, "line", { x1: box.left, x2: box.right, y1: at, y2: at });
    add(frame, "text", { x: box.left - 8, y: at + 4, "text-anchor": "end" }, text);
  }
  for (const tick of ticks(0, end / axis.unit, Math.min(8, width / 90))) {
    const at = x(tick * axis.unit);
    add(frame, "line", { x1: at, x2: at, y1: box.top, y2: box.bottom });
    const text = tickText(tick);
    add(frame, "text", { x: at, y: box.bottom + 18, "text-anchor": "middle" }, text);
  }
  const middle = (box.left + box.right) / 2;
  add(frame, "text", { x: middle, y: height - 6, "text-anchor": "middle" }, axis.label);
  const turned = `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)`;
  const title = data.metric.title;
  add(frame, "text", { transform: turned, "text-anchor": "middle" }, title);
}

function path(xs, ys, { x, y }) {
  return xs.map((at, n) => `${x(at).toFixed(1)} ${y(ys[n]).toFixed(1)}`).join("L");
}

function drawLines(shape) {
  for (const row of shape.rows) {
    const { x, mean: means, low, high } = row.bands[state.axis];
    const group = colours(add(svg, "g", { class: "series" }), row);
    group.dataset.label = row.label;
    if (Object.keys(row.runs).length > 1) {
      const back = path([...x].reverse(), [...low].reverse(), shape);
      add(group, "path", { class: "range", d: `M${path(x, high, shape)}L${back}Z` });
    }
    const line = { class: "mean", d: `M${path(x, means, shape)}` };
    add(group, "path", { ...line, "stroke-width": row.width, "stroke-dasharray": row.dashes });
    const ends = { cx: shape.x(x.at(-1)), cy: shape.y(means.at(-1)), r: 2.6 };
    add(group, "circle", ends);
  }
}

function drawLabels({ rows, width, box, isLabelled, x, y }) {
  if (!isLabelled) return;
  const ends = rows.map((row) => {
    const band = row.bands[state.axis];
    return [x(band.x.at(-1)), y(band.mean.at(-1))];
  });
  const heights = spreadOut(ends.map(([, at]) => at), GAP, box.top, box.bottom);
  const most = Math.floor((width - box.right - 24) / 6.7);
  rows.forEach((row, place) => {
    const group = colours(add(svg, "g", { class: "label" }), row);
    const [across, down] = ends[place];
    const points = `${across},${down} ${box.right + 4},${heights[place]} ${box.right + 14},${heights[place]}`;
    add(group, "polyline", { points });
    const cut = row.label.length > most ? `${row.label.slice(0, most - 1)}…` : row.label;
    add(group, "text", { x: box.right + 18, y: heights[place] + 4 }, cut);
  });
}

function drawTarget({ box, y }) {
  const at = y(state.target);
  const group = add(svg, "g", { class: "target" });
  add(group, "line", { x1: box.left, x2: box.right, y1: at, y2: at });
  const text = `target ${metricText(state.target)}`;
  const side = at - box.top < 20 ? 14 : -5;
  add(group, "text", { x: box.left + 5, y: at + side }, text);
}

function draw() {
  view = layOut(shownRows());
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${view.width} ${view.height}`);
  svg.setAttribute("height", view.height);
  if (view.rows.length) {
    drawAxes(view);
    drawTarget(view);
    drawLines(view);
    drawLabels(view);
  } else {
    const middle = { x: view.width / 2, y: view.height / 2, "text-anchor": "middle" };
    add(svg, "text", middle, "Choose an algorithm above");
  }
  svg.setAttribute("aria-label", described());
  point(null);
}

function costWords(cost) {
  switch (state.axis) {
    case "time": return `${oneDecimal(cost)} s`;
    case "bytes": return `${threeDigits(cost / 1e6)} MB`;
    case "energy": return `${threeDigits(cost / 1e3)} kJ`;
    default: return `${grouped(fixed(cost, 0))} updates`;
  }
}

// A place of the axis, in its unit.
function placeWords(at) {
  if (state.axis === "time" || state.axis === "updates") return costWords(at);
  return `${threeDigits(at / view.axis.unit)} ${view.axis.name}`;
}

// What is to be seen, in words.
function described() {
  const against = state.axis === "bytes" ? "bytes sent and received" : state.axis;
  const place = { time: 1, bytes: 2, updates: 3, energy: 4 }[state.axis];
  const goal = metricText(state.target);
  const said = shownRows().map((row) => {
    const seeds = Object.keys(row.runs).length;
    const costs = Object.values(arrivals(row, state.target)).map((each) => each[place]);
    const share = costs.length < seeds ? ` with ${costs.length} of ${seeds} seeds` : "";
    const reached = costs.length
      ? `reaches ${goal} after ${costWords(mean(costs))}${share}`
      : `does not reach ${goal}`;
    const end = row.final === null ? "" : ` and ends at ${metricText(row.final)}`;
    return `${row.label} ${reached}${end}.`;
  });
  return `${data.metric.title} against ${against}: ${said.join(" ")}`;
}

// The mean, lowest and highest of a line, straight between two points.
function valuesAt(band, at) {
  const { x } = band;
  if (at < x[0] || at > x.at(-1)) return null;
  const next = Math.max(1, x.findIndex((each) => each >= at));
  const length = x.length > 1 ? x[next] - x[next - 1] : 0;
  const share = length ? (at - x[next - 1]) / length : 1;
  return ["mean", "low", "high"].map((name) => {
    if (x.length === 1) return band[name][0];
    return band[name][next - 1] * (1 - share) + band[name][next] * share;
  });
}

// Show the values at a place of the x axis; null shows none.
function point(at, speak = false) {
  state.at = at;
  svg.querySelector(".cursor")?.remove();
  readout.hidden = at === null || !view.rows.length;
  if (readout.hidden) return;
  const cursor = add(svg, "g", { class: "cursor" });
  const across = view.x(at);
  add(cursor, "line", { x1: across, x2: across, y1: view.box.top, y2: view.box.bottom });
  const found = [];
  for (const row of view.rows) {
    const values = valuesAt(row.bands[state.axis], at);
    if (!values) continue;
    found.push([row, values]);
    colours(add(cursor, "circle", { cx: across, cy: view.y(values[0]), r: 4 }), row);
  }
  found.sort(([, a], [, b]) => goodness(b[0]) - goodness(a[0]));
  const texts = found.map(([row, [middle, low, high]]) => {
    const range = low < high ? ` (${metricText(low)} to ${metricText(high)})` : "";
    return [row, `${metricText(middle)}${range}`];
  });
  readout.replaceChildren(document.createElement("b"));
  readout.firstChild.textContent = placeWords(at);
  for (const [row, text] of texts) {
    const line = document.createElement("div");
    const dot = colours(document.createElement("i"), row);
    line.append(dot, `${row.label}: ${text}`);
    readout.append(line);
  }
  const left = across > (view.box.left + view.box.right) / 2;
  readout.style.left = left ? "" : `${across + 12}px`;
  readout.style.right = left ? `${view.width - across + 12}px` : "";
  if (speak) {
    const words = texts.map(([row, text]) => `${row.label}: ${text}`).join("; ");
    spoken.textContent = `${placeWords(at)}: ${words}`;
  }
}

svg.addEventListener("pointermove", (event) => {
  const { left, width } = svg.getBoundingClientRect();
  const across = ((event.clientX - left) / width) * view.width;
  const share = (across - view.box.left) / (view.box.right - view.box.left);
  point(share < 0 || share > 1 ? null : share * view.end);
});
svg.addEventListener("pointerleave", () => point(null));
svg.addEventListener("blur", () => point(null));
svg.addEventListener("keydown", (event) => {
  const step = view.end / (event.shiftKey ? 10 : 50);
  const from = state.at ?? 0;
  const moves = { ArrowLeft: from - step, ArrowRight: from + step, Home: 0, End: view.end };
  if (event.key === "Escape") point(null);
  if (!(event.key in moves)) return;
  event.preventDefault();
  point(Math.min(Math.max(moves[event.key], 0), view.end), true);
});
