// The table: sorting, and the columns that follow the target.

const body = document.querySelector("#results tbody");
const headings = [...document.querySelectorAll("#results thead th")];
const lines = data.rows.map((row, place) => {
  const line = body.rows[place];
  const cells = {};
  headings.forEach((heading, column) => {
    const cell = line.cells[column];
    cells[heading.dataset.key] = { cell, ...stateOf(cell) };
  });
  return { row, line, cells };
});
const titles = headings.map((heading) => heading.textContent.trim());

function stateOf(cell) {
  const best = cell.classList.contains("best");
  return { text: cell.textContent, value: cell.dataset.value, best };
}

function fill(place, key, text, value, best = false) {
  const { cell } = lines[place].cells[key];
  cell.textContent = text;
  cell.classList.toggle("best", best);
  if (value === undefined) delete cell.dataset.value;
  else cell.dataset.value = value;
}

function sortKey(line, column) {
  const cell = line.cells[column];
  return column === 0 ? cell.textContent : Number(cell.dataset.value ?? NaN);
}

// Which of two lines comes first; those without a number are the last either way.
function order(x, y, up) {
  const [lacksX, lacksY] = [Number.isNaN(x), Number.isNaN(y)];
  if (lacksX || lacksY) return lacksX - lacksY;
  return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
}

headings.forEach((heading, column) => heading.addEventListener("click", () => {
  const up = heading.getAttribute("aria-sort") !== "ascending";
  headings.forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  const sorted = [...body.rows].sort(
    (a, b) => order(sortKey(a, column), sortKey(b, column), up),
  );
  body.append(...sorted);
}));

// When each seed reached a target, of those that did: {seed: [value, time, bytes, ...]}.
function arrivals(row, target) {
  const found = {};
  for (const [seed, records] of Object.entries(row.runs)) {
    const point = records.find(([value]) => goodness(value) >= goodness(target));
    if (point) found[seed] = point;
  }
  return found;
}

function costText(costs, seeds, { unit, write }) {
  if (!costs.length) return "N/A";
  const share = costs.length < seeds ? ` (${costs.length}/${seeds})` : "";
  return write(mean(costs) / unit) + share;
}

function excess(pairs) {
  return sum(pairs.map(([own]) => own)) / sum(pairs.map(([, base]) => base)) - 1;
}

function overhead(own, base, cost) {
  const both = Object.keys(own).filter((seed) => seed in base);
  const pairs = both.map((seed) => [own[seed][cost], base[seed][cost]]);
  return pairs.length && pairs.every(([, needed]) => needed)
    ? interval(pairs, excess)
    : null;
}

function overheadText(found) {
  const percent = (share) => `${signed(100 * share, 1)}%`;
  if (found === null) return "N/A";
  if (found.low === undefined) return percent(found.value);
  const bounds = `[${percent(found.low)}, ${percent(found.high)}]`;
  return `${percent(found.value)} ${bounds}${isClear(found) ? "*" : ""}`;
}

// Which rows need least, as in the file: with every seed, or no worse for sure.
function cheapest(found, cost) {
  const seedsOf = (place) => Object.keys(data.rows[place].runs);
  const places = found.map((_, place) => place);
  const run = places.filter((place) => seedsOf(place).length);
  const whole = run.filter((place) =>
    seedsOf(place).every((seed) => seed in found[place]));
  const isLarge = run.some((place) => seedsOf(place).length > data.mostAll);
  if (run.length < 2 || !whole.length || isLarge) return places.map(() => false);
  const costs = (place) => Object.values(found[place]).map((point) => point[cost]);
  const least = Math.min(...whole.map((place) => mean(costs(place))));
  const winner = whole.find((place) => mean(costs(place)) === least);
  return places.map((place) => {
    if (!whole.includes(place)) return false;
    if (mean(costs(place)) === least) return true;
    const both = seedsOf(place).filter((seed) => seed in found[winner]);
    const gaps = both.map((seed) => found[place][seed][cost] - found[winner][seed][cost]);
    const gap = gaps.length ? interval(gaps, mean) : {};
    return gap.low !== undefined && !isClear(gap);
  });
}

const COSTS = [
  { key: "seconds", word: "s", overhead: "time_overhead", unit: 1, write: oneDecimal, place: 1 },
  { key: "bytes", word: "MB", overhead: "byte_overhead", unit: 1e6, write: threeDigits, place: 2 },
  { key: "joules", word: "kJ", overhead: "energy_overhead", unit: 1e3, write: threeDigits, place: 4 },
].filter(({ key }) => headings.some((heading) => heading.dataset.key === key));

function followTarget(target) {
  const own = target === data.target.value;
  headings.forEach((heading, column) => {
    const cost = COSTS.find(({ key }) => key === heading.dataset.key);
    if (cost && !own) {
      heading.firstElementChild.textContent = `${cost.word} to ${metricText(target)}`;
    } else {
      heading.firstElementChild.textContent = titles[column];
    }
  });
  const found = data.rows.map((row) => arrivals(row, target));
  const reference = data.rows.findIndex((row) => row.label === data.reference);
  for (const column of COSTS) {
    const { key, overhead: more, place: cost } = column;
    const best = own ? [] : cheapest(found, cost);
    data.rows.forEach((row, place) => {
      if (own) {
        for (const name of [key, more]) {
          const { text, value, best: was } = lines[place].cells[name];
          fill(place, name, text, value, was);
        }
        return;
      }
      const costs = Object.values(found[place]).map((point) => point[cost]);
      const text = costText(costs, Object.keys(row.runs).length, column);
      fill(place, key, text, costs.length ? mean(costs) : undefined, best[place]);
      if (place === reference) return;
      const beside = reference < 0
        ? null
        : overhead(found[place], found[reference], cost);
      fill(place, more, overheadText(beside), beside?.value);
    });
  }
  headings.forEach((heading) => {
    if (/seconds|bytes|joules|overhead/.test(heading.dataset.key)) {
      heading.removeAttribute("aria-sort");
    }
  });
  return found;
}
