"use strict";
// Numbers as the figures write and tint them, and the numbers of tensors as the page holds them.

const byId = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const range = (size) => Array.from({ length: size }, (_, i) => i);
const index = JSON.parse(byId("index").textContent);
const tensors = new Map(index.tensors.map((tensor) => [tensor.name, tensor]));
const MINUS_INFINITY = -1e30; // what is lower is written −∞

// As writing.py: Python rounds a tie to the even neighbour, JavaScript away from zero.

const even = (value) => (value % 1 === 0.5 ? 2 * Math.round(value / 2) : Math.round(value));

function fixed(size, digits) {
  const tie = (size * 2 ** (digits + 1)) % 2 === 1;
  return (tie ? even(size * 10 ** digits) / 10 ** digits : size).toFixed(digits);
}

function scientific(size) {
  let [digits, power] = size.toExponential(1).split("e");
  const tenths = size / 10 ** power * 10;
  if (power >= 0 && tenths % 1 === 0.5) digits = (even(tenths) / 10).toFixed(1); // no smaller number is a tie
  return `${digits}e${power[0].replace("-", "−")}${power.slice(1).padStart(2, "0")}`;
}

function number(value, type = "f32") {
  if (type === "bool") return value ? "yes" : "no";
  if (type === "int") return String(value).replace("-", "−");
  if (Number.isNaN(value)) return "nan";
  const size = Math.abs(value);
  if (size >= -MINUS_INFINITY) return value > 0 ? "∞" : "−∞";
  const text = size < 100 ? fixed(size, 3) : size < 1e4 ? fixed(size, 1) : scientific(size);
  return value < 0 && text !== "0.000" ? `−${text}` : text;
}

// Where three decimals would say nothing, as of gradients, a power of ten does.
function fine(value) {
  const size = Math.abs(value);
  return size && size < 0.01 ? (value < 0 ? "−" : "") + scientific(size) : number(value);
}

const exact = (value) => String(Number(value.toPrecision(7)));

function shade(level) {
  const bounded = Number.isNaN(level) ? 0 : Math.min(Math.max(level, 0), 1);
  const parts = index.dark.map((dark) => even(255 + (dark - 255) * bounded).toString(16).padStart(2, "0"));
  return [`#${parts.join("")}`, bounded > index.white_from ? "#ffffff" : "#000000"];
}

const tint = (value, { low, high }) => shade(high > low ? (value - low) / (high - low) : 0);

function extremes(values) {
  const finite = values.filter((value) => value > MINUS_INFINITY);
  return finite.length ? [Math.min(...finite), Math.max(...finite)] : [0, 1];
}

// A tensor's JSON, and the bytes in it, are read when they are first asked for.

const read = new Map();

function packed(id) {
  if (!read.has(id)) {
    const found = JSON.parse(byId(id).textContent), { values, type } = found;
    read.set(id, { ...found, values: found.from ? swapped(found.from) : values && decoded(values, type) });
  }
  return read.get(id);
}

// [B, L, H, K] out of [B, H, L, K].
function swapped(id) {
  const { values } = packed(id), [batch, heads, length, width] = tensors.get(id.replace("value:", "")).shape;
  const row = (b, i, head) => ((b * heads + head) * length + i) * width;
  return range(batch).flatMap((b) => range(length).flatMap((i) => range(heads).flatMap((head) =>
    values.slice(row(b, i, head), row(b, i, head) + width))));
}

function decoded(content, type) {
  if (typeof content !== "string") return content;
  const view = new DataView(Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0)).buffer);
  if (type === "f64") return range(view.byteLength / 8).map((i) => view.getFloat64(8 * i, true));
  return range(view.byteLength / 4).map((i) => view.getFloat32(4 * i, true));
}

const inNumbers = (rows, columns) => rows * columns <= index.numbers[0] && columns <= index.numbers[1];

// As shading.py's summary.
function summary(values) {
  const finite = values.filter((value) => value > MINUS_INFINITY), [low, high] = extremes(finite);
  if (!finite.length) return "all −∞";
  const mean = (list) => list.reduce((sum, value) => sum + value, 0) / list.length, middle = mean(finite);
  const parts = { min: low, max: high, mean: middle, std: Math.sqrt(mean(finite.map((value) => (value - middle) ** 2))) };
  return Object.entries(parts).map(([name, value]) => `${name} ${number(value)}`).join(" · ");
}

// One matrix of a tensor, the `place`th: `at(row, column)`, the `whole` or only its corner, and its `heat` map.
function matrix(id, place, turned = false) {
  const found = packed(id), given = (turned ? found.turned : found.heats)?.[place];
  const [rows, columns] = turned ? [...found.matrix].reverse() : found.matrix;
  const values = found.values?.slice(place * rows * columns, (place + 1) * rows * columns);
  const own = values && !inNumbers(rows, columns) ? { size: [rows, columns], summary: summary(values) } : undefined;
  const heat = given ?? own, shown = { rows, columns, heat, type: found.type, whole: Boolean(values) };
  if (values) {
    const [low, high] = extremes(values);
    const at = (row, column) => values[turned ? column * rows + row : row * columns + column];
    return { ...shown, low, high, at };
  }
  const corner = decoded(heat.corner, found.type), wide = Math.min(columns, index.corner[1]);
  const at = (row, column) => (column < wide ? corner[row * wide + column] : undefined) ?? NaN;
  return { ...shown, low: Number(heat.low), high: Number(heat.high), at };
}

// The squares of a heat map, joined to one path for each level; "-1" is −∞ or no number. Where each square has a
// number of its own it is tinted here, between the limits of its grid; what is pooled has been tinted before.
function levelPaths(shown) {
  const { heat, rows, columns } = shown, paths = {};
  const single = shown.whole && (!heat || (heat.size[0] === rows && heat.size[1] === columns));
  const [height, width] = single ? [rows, columns] : heat.size, span = shown.high - shown.low || 1;
  for (const row of range(height)) for (const column of range(width)) {
    const level = single ? levelOf(shown.at(row, column)) : parseInt(heat.levels[row * width + column], 36);
    const key = Number.isNaN(level) ? "-1" : String(level);
    paths[key] = `${paths[key] ?? ""}M${column} ${row}h1v1h-1z`;
  }
  return paths;

  function levelOf(value) {
    if (!(value > MINUS_INFINITY)) return NaN;
    return even((Math.min(Math.max(value, shown.low), shown.high) - shown.low) / span * (index.levels - 1));
  }
}

// The axes of a tensor without batch and spread ones: `inner` of a matrix, `outer` of those in front; how many
// matrices a sentence has, and which of all is the `first` of this one.
function outline(tensor, sentence) {
  const own = tensor.axes.map((axis, i) => [axis, tensor.shape[i]]).filter(([axis]) => axis !== "B" && axis !== "1");
  const outer = own.slice(0, -2), many = outer.reduce((product, [, size]) => product * size, 1);
  return { inner: own.slice(-2), outer, many, first: tensor.axes[0] === "B" ? sentence * many : 0 };
}

// What is drawn and written.

function drawn(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
