// Numbers, written and put together as the report does it itself.

// A decimal of so many digits; ties go to the even digit.
function fixed(number, digits) {
  const size = Math.abs(number);
  let text = size.toFixed(digits);
  const isTie = (size * 2 ** (digits + 1)) % 2 === 1;
  if (isTie && Number(text.at(-1)) % 2 === 1) {
    text = (size - 0.5 * 10 ** -digits).toFixed(digits);
  }
  return (number < 0 || Object.is(number, -0) ? "-" : "") + text;
}

function signed(number, digits) {
  const text = fixed(number, digits);
  return text.startsWith("-") ? text : `+${text}`;
}

function grouped(text) {
  const [whole, ...rest] = text.split(".");
  return [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...rest].join(".");
}

function oneDecimal(value) {
  return grouped(fixed(value, 1));
}

// What is less is the rounding of something else.
const MOST_DECIMALS = 12;

// The power of ten of a number with so many digits.
function powerOf(value, digits) {
  return Number(value.toExponential(digits - 1).split("e")[1]);
}

// Three digits, or all of them before the point.
function threeDigits(value) {
  if (value >= 99.95) return grouped(fixed(value, 0));
  return fixed(value, Math.min(2 - powerOf(value, 3), MOST_DECIMALS));
}

// Four digits, or all of them before the point; a power of ten far away from 1.
function fourDigits(value) {
  const size = Math.abs(value);
  if (size >= 1e7 || (size > 0 && size < 1e-4)) {
    return value.toExponential(3).replace(/([+-])(\d)$/, "$10$2");
  }
  const decimals = Math.min(Math.max(3 - powerOf(value, 4), 0), MOST_DECIMALS);
  const text = grouped(fixed(value, decimals));
  return decimals ? text.replace(/\.?0+$/, "") : text;
}

// What each addition rounds away is added at the end (A. Neumaier, 1974).
function sum(numbers) {
  let [total, lost] = [0, 0];
  for (const number of numbers) {
    const next = total + number;
    lost += Math.abs(total) >= Math.abs(number)
      ? (total - next) + number
      : (number - next) + total;
    total = next;
  }
  return total + lost;
}

function mean(numbers) {
  return sum(numbers) / numbers.length;
}

function metricText(value, digits = 2) {
  return data.metric.share
    ? `${fixed(100 * value, digits)}%`
    : fourDigits(value);
}

function goodness(value) {
  return data.metric.falls ? -value : value;
}

// A value of the metric that is typed, a share in per cent. Of 95.2 it is 0.952, which
// some samples in a thousand are: the quotient is above that.
function typed(text) {
  if (text === "") return NaN;
  return data.metric.share ? Number((Number(text) / 100).toPrecision(15)) : Number(text);
}

// A figure of some seeds with its 95 % bootstrap interval over all resamples.
// Without bounds of too few seeds, and of so many that resamples would be drawn.
function interval(seeds, figure) {
  const value = figure(seeds);
  const count = seeds.length;
  if (count < data.fewest || count > data.mostAll) return { value };
  const factorials = [1];
  for (let n = 1; n <= count; n += 1) factorials.push(n * factorials[n - 1]);
  const found = [];
  (function choose(place, chosen, ways) {
    if (chosen.length === count) {
      found.push([figure(chosen), ways]);
    } else if (place < count) {
      const drawn = [...chosen];
      for (let times = 0; drawn.length <= count; times += 1) {
        choose(place + 1, [...drawn], ways / factorials[times]);
        drawn.push(seeds[place]);
      }
    }
  })(0, [], factorials[count]);
  found.sort((a, b) => a[0] - b[0]);
  const bound = (share) => {
    let ways = 0;
    for (const [each, more] of found) {
      ways += more;
      // Ways are whole but for the rounding of their quotients.
      if (Math.round(ways * 1e6) / 1e6 / count ** count >= share) return each;
    }
    return found.at(-1)[0];
  };
  return { value, low: bound((1 - 0.95) / 2), high: bound((1 + 0.95) / 2) };
}

function isClear(found) {
  if (found.low === undefined) return false;
  const rounding = 1e-9 * Math.max(Math.abs(found.low), Math.abs(found.high));
  return found.low > rounding || found.high < -rounding;
}
