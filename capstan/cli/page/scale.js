"use strict";
// Numbers as axes and people read them.

// Round numbers that cover [low, high], about `most` of them.
function roundTicks(low, high, most) {
  const rough = (high - low) / Math.max(1, most);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.7);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) ticks.push(i * step + 0);
  return ticks;
}

// Powers of ten, with 2 and 5 times those where there are few.
function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const factors = last - first <= 2 ? [1, 2, 5] : [1];
  const stride = Math.max(1, Math.ceil((last - first) / 6));
  const ticks = [];
  for (let power = first; power <= last; power += stride) {
    for (const factor of factors) ticks.push(factor * 10 ** power);
  }
  const inside = ticks.filter((tick) => tick >= low * 0.999999 && tick <= high * 1.000001);
  return inside.length > 1 ? inside : roundTicks(low, high, 5);
}

function trimmed(value, digits) {
  return String(Number(value.toPrecision(digits)));
}

// 0.00031, 1234 -> "1.23k"
function shortNumber(value, digits = 4) {
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size < 1e-3) return Number(value.toPrecision(digits)).toExponential().replace("e+", "e");
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= limit) return trimmed(value / (unit === "k" ? 1e3 : limit), digits) + unit;
  }
  return trimmed(value, digits);
}

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

function byteUnit(most) {
  const power = most > 0 ? Math.floor(Math.log2(most) / 10) : 0;
  return Math.max(0, Math.min(BYTE_UNITS.length - 1, power));
}

function bytesText(value) {
  const unit = byteUnit(value);
  return `${trimmed(value / 1024 ** unit, 4)} ${BYTE_UNITS[unit]}`;
}

const TIME_UNITS = [[1, "s"], [60, "min"], [3600, "h"], [86400, "d"]];

function timeUnit(span) {
  return TIME_UNITS.findLast(([seconds]) => span >= 2 * seconds) || TIME_UNITS[0];
}

// "1:05", "2:03:09"
function clockText(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600), rest = two(whole % 60);
  return hours > 0 ? `${hours}:${two(Math.floor(whole / 60) % 60)}:${rest}` : `${Math.floor(whole / 60)}:${rest}`;
}

// What an axis is divided by, the name of that, and how its values are told.
const KINDS = {
  number: { unit: () => [1, ""], text: (value) => shortNumber(value, 5) },
  bytes: { unit: (most) => [1024 ** byteUnit(most), BYTE_UNITS[byteUnit(most)]], text: bytesText },
  share: { unit: () => [0.01, "%"], text: (value) => `${trimmed(100 * value, 3)} %` },
  milliseconds: { unit: () => [1, "ms"], text: (value) => `${shortNumber(value)} ms` },
  seconds: { unit: (most) => timeUnit(most), text: clockText },
};
