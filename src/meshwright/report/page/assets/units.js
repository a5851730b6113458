// Numbers as people read them: three significant digits, GiB, s and ms. The same rules as the command line's.

const GIB = 2 ** 30;

// Made once: a formatter takes longer to make than to format a thousand numbers.
const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 9 });
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function significant(number, digits = 3) {
  if (!Number.isFinite(number)) return "–";
  if (number === 0) return "0";
  return GROUPED.format(Number(number.toPrecision(digits)));
}

export function seconds(time) {
  if (time === null || time === undefined || !Number.isFinite(time)) return "–";
  const size = Math.abs(time);
  if (size >= 1 || size === 0) return `${significant(time)} s`;
  if (size >= 1e-3) return `${significant(time * 1e3)} ms`;
  return `${significant(time * 1e6)} µs`;
}

export const signedSeconds = (time) => (time >= 0 ? "+" : "−") + seconds(Math.abs(time));

export const gib = (bytes) => `${significant(bytes / GIB)} GiB`;

export const ofCapacity = (peak, capacity) => `${significant(peak / GIB)} of ${gib(capacity)}`;

export function bytes(size) {
  for (const [scale, unit] of [[2 ** 40, "TiB"], [GIB, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (size >= scale) return `${significant(size / scale)} ${unit}`;
  }
  return `${significant(size)} B`;
}

export function percent(share) {
  const value = 100 * share;
  if (Math.abs(value) >= 9.95 || value === 0) return `${WHOLE.format(value)}%`;
  return Math.abs(value) >= 0.05 ? `${value.toFixed(1)}%` : "under 0.1%";
}

export function signedPercent(share) {
  const size = percent(Math.abs(share));
  return size.startsWith("under") ? size : (share >= 0 ? "+" : "−") + size;
}

export function count(number) {
  for (const [scale, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"]]) {
    if (Math.abs(number) >= scale) return `${significant(number / scale)} ${letter}`;
  }
  return WHOLE.format(number);
}

export const rate = (bytesPerSecond) => `${significant(bytesPerSecond / 1e9)} GB/s`;

export const usd = (price) => (price >= 1000 ? `${Math.round(price).toLocaleString("en-US")} USD` : `${significant(price)} USD`);

export function energy(joules) {
  const kwh = joules / 3.6e6;
  for (const [scale, unit] of [[1e6, "GWh"], [1e3, "MWh"], [1, "kWh"]]) {
    if (Math.abs(kwh) >= scale) return `${significant(kwh / scale)} ${unit}`;
  }
  return `${significant(kwh * 1e3)} Wh`;
}

// Round numbers from 0 to `end`, at most `most` of them: multiples of 1, 2 or 5 and a power of 10.
export function ticks(end, most = 8) {
  if (!(end > 0)) return [0];
  const power = 10 ** Math.floor(Math.log10(end / most));
  const step = [1, 2, 5, 10].map((round) => round * power).find((size) => size * most >= end * (1 - 1e-9));
  return Array.from({ length: Math.floor((end / step) * (1 + 1e-9)) + 1 }, (_, at) => at * step);
}

// A name as the first words of a line; fp8 and NVLink stay as they are written.
export const sentence = (name) => name.replace(/^[a-z](?=[a-z]*( |$))/, (first) => first.toUpperCase());
