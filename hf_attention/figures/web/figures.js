// Figures: those of another choice are hidden; those of another layer or head get its numbers put in.

const state = {
  sentence: 0,
  kind: document.querySelector("[data-choose=kind] option").value,
  layer: 0,
  head: 0,
  translation_layer: index.layers["decoder.cross_attn"] - 1, // the last one, as in the figure
};

const pathOf = (kind) => kind.replace(".", `.layers.${state.layer}.`);

function show() {
  state.layer = Math.min(state.layer, index.layers[state.kind] - 1);
  for (const chooser of all("[data-choose]")) chooser.value = state[chooser.dataset.choose];
  all("[data-choose=layer] option").forEach((option, i) => { option.disabled = i >= index.layers[state.kind]; });
  for (const figure of all(".figure")) {
    const { sentence = state.sentence, kind = state.kind, path } = figure.dataset;
    figure.hidden = Number(sentence) !== state.sentence || kind !== state.kind;
    if (figure.hidden) continue;
    const unread = figure.querySelector("script"); // a figure is read when it is first shown
    if (unread) figure.innerHTML = unread.textContent;
    if (path) fill(figure);
  }
  hint();
}

// Above a figure that is wider than its window it says so.
function hint() {
  for (const words of all(".sideways")) {
    const figure = words.parentElement.querySelector(".figure:not([hidden])");
    words.hidden = figure.scrollWidth <= figure.clientWidth + 1;
  }
}

function fill(figure) {
  const { kind } = figure.dataset, path = kind ? pathOf(kind) : figure.dataset.path, svg = figure.querySelector("svg");
  figure.dataset.path = path;
  for (const grid of all("[data-grid]", figure)) {
    if (figure.closest(".recompute")) makeReachable(grid, svg);
    const key = grid.dataset.grid, { many, first } = outline(tensors.get(`${path}.${key}`), state.sentence);
    const head = Number(grid.closest("[data-head]")?.dataset.head ?? state.head);
    put(grid, matrix(`value:${path}.${key}`, first + Math.min(head, many - 1), index.transposed.includes(key)));
  }
  const strongest = all("[data-lines]", figure).map((group) => drawLines(group, path, kind));
  figure.toggleAttribute("data-missing", all("[data-lines]", figure).some((group) => group.style.display));
  if (strongest.length) {
    const words = svg.querySelector("desc"), told = `The strongest: ${strongest.join(", ")}.`;
    words.textContent = words.textContent.replace(/The strongest: .*/s, () => told);
  }
  if (kind) for (const box of all("[data-open]", figure)) box.dataset.open = path;
  rename(figure, svg, path, kind);
}

function makeReachable(grid, svg) {
  const title = grid.querySelector(".bold")?.textContent ?? grid.dataset.grid;
  grid.setAttribute("tabindex", "0");
  grid.setAttribute("role", "group");
  grid.setAttribute("aria-label", `${title}: a matrix; arrow keys go from cell to cell`);
  svg.setAttribute("role", "group"); // no mere picture any more
}

// Layer and head in the words around the numbers; not in tokens, which may be any words.
function rename(figure, svg, path, kind) {
  const one = !figure.querySelector("[data-head]"), layer = kind ? state.layer : state.translation_layer;
  const renamed = (text) => text
    .replace(/\w+\.layers\.\d+\.\w+_attn/, path)
    .replace(/(coder layer )\d+/, `$1${layer}`)
    .replace(/(head (?:i = )?)\d+/, (whole, words) => (one ? words + state.head : whole));
  const title = svg.querySelector("title");
  title.textContent = renamed(title.textContent);
  svg.setAttribute("aria-label", title.textContent);
  for (const line of all("text.bold, text.faint", svg)) {
    const token = "rowName" in line.dataset || "columnName" in line.dataset || line.closest("[data-grid]");
    if (!token && line.textContent !== renamed(line.textContent)) line.textContent = renamed(line.textContent);
  }
}

// Puts the numbers of `shown` into a drawn grid.
function put(grid, shown) {
  const { low, high, limits } = grid.dataset;
  grid.shown = limits === "given" ? Object.assign(shown, { low: Number(low), high: Number(high) }) : shown;
  Object.assign(grid.dataset, { low: exact(shown.low), high: exact(shown.high) });
  for (const cell of all(".cell", grid)) {
    const value = shown.at(Number(cell.dataset.row), Number(cell.dataset.column)), [fill, ink] = tint(value, shown);
    cell.setAttribute("fill", fill);
    cell.dataset.value = exact(value);
    if (cell.nextElementSibling.matches(".hidden")) cell.nextElementSibling.remove();
    const text = cell.nextElementSibling;
    text.textContent = number(value, shown.type);
    text.setAttribute("fill", ink);
    text.style.fill = ink;
    if (value < MINUS_INFINITY) cell.after(drawn("rect", { class: "hidden", ...boxOf(cell) }));
  }
  const paths = grid.querySelector(".heat") ? levelPaths(shown) : {}, summary = grid.querySelector(".summary");
  for (const path of all("[data-level]", grid)) path.setAttribute("d", paths[path.dataset.level] ?? "");
  if (summary) summary.textContent = shown.heat.summary;
}

function boxOf(rect) {
  return Object.fromEntries(["x", "y", "width", "height"].map((name) => [name, Number(rect.getAttribute(name))]));
}

const round = (value, digits = 2) => Number(value.toFixed(digits));

// Lines from queries to keys, as heads.py draws them; returns the strongest in words.
function drawLines(group, path, kind) {
  const [left, right, top, row, queries, keys] = group.dataset.lines.split(" ").map(Number);
  const head = Number(group.dataset.head), y = (i) => round(top + (i + 0.5) * row), across = round((left + right) / 2);
  const name = kind ? `${path}.weights` : `${path}.cross_attention`, tensor = tensors.get(name);
  const { first } = outline(tensor, state.sentence), above = kind ? 0 : state.translation_layer * index.sizes.H;
  const shown = matrix(`value:${name}`, first + above + head);
  const asDrawn = kind ? state.layer === 0 : state.translation_layer === index.layers["decoder.cross_attn"] - 1;
  group.style.display = shown.whole || asDrawn ? "" : "none"; // of a long sentence the page has no other lines
  if (!shown.whole) return `head ${head}, of too many weights`;
  const lines = range(queries).flatMap((query) => range(keys).map((key) => [shown.at(query, key), query, key]));
  lines.sort((one, other) => one[0] - other[0]);
  const enough = lines.filter(([weight]) => weight >= index.least);
  group.replaceChildren(...enough.map(([weight, query, key]) => drawn("path", {
    class: "arc",
    d: `M${round(left)} ${y(query)}C${across} ${y(query)} ${across} ${y(key)} ${round(right)} ${y(key)}`,
    "stroke-opacity": round(0.08 + 0.92 * weight),
    "stroke-width": round(0.7 + 3.8 * weight, 1),
    "data-query": query, "data-key": key, "data-weight": exact(weight),
  })));
  const [weight, query, key] = lines.at(-1), [from, to] = tensor.axes.slice(-2).map((axis) => tokens(tensor, axis));
  return `head ${head} from ${from[query]} to ${to[key]} (${number(weight)})`;
}

// What a cell was computed from lights up, and a line works it out.

const gridsOf = (figure, key) => all(`[data-grid="${key}"]`, figure);
const darken = () => all(".light-on").forEach((rect) => rect.remove());
const line = document.querySelector(".recompute .sum"), invitation = [...line.childNodes];
let lit = null; // the cell whose line it is

// Other numbers or another way to write them: the same cell again, if it can still be seen.
function relight() {
  if (!lit) return;
  if (!lit[0].closest(".figure").hidden) return light(...lit);
  lit = null;
  darken();
  line.replaceChildren(...invitation);
}

function light(grid, row, column) {
  const figure = grid.closest(".figure");
  darken();
  for (const [from, way] of index.made_from[grid.dataset.grid] ?? []) for (const source of gridsOf(figure, from))
    frame(source, way === "column" ? null : row, way === "row" ? null : column);
  frame(grid, row, column, "here");
  if (!figure.closest(".recompute")) return;
  lit = [grid, row, column];
  line.replaceChildren(...workedOut(figure, grid, row, column));
}

// A frame around a cell; around the whole column or row where the other is null.
function frame(grid, row, column, kind = "") {
  const { rows, columns, heat } = grid.shown, [down, across] = heat?.size ?? [rows, columns];
  const map = grid.querySelector(".heat");
  const cell = map ? { x: 0, y: 0, width: across / columns, height: down / rows } : boxOf(grid.querySelector(".cell"));
  (map ?? grid).append(drawn("rect", {
    class: `light-on ${kind}`,
    x: cell.x + (column ?? 0) * cell.width,
    y: cell.y + (row ?? 0) * cell.height,
    width: cell.width * (column === null ? columns : 1),
    height: cell.height * (row === null ? rows : 1),
  }));
}

const TERMS = 12; // of a sum that is written out; of a longer one half as many, unless a reader wants all

function joined(terms) {
  if (terms.length <= TERMS || byId("all-terms").checked) return terms.join(" + ");
  return `${terms.slice(0, TERMS / 2).join(" + ")} + … (${terms.length} in all)`;
}

// `scores, dog → hund: 0.612 / √4 = 0.306`
function workedOut(figure, grid, row, column) {
  const { shown, dataset: { grid: key } } = grid;
  const parts = (index.made_from[key] ?? []).map(([from]) => gridsOf(figure, from)[0]?.shown).filter(Boolean);
  const [first, second] = parts;
  const put = (from, i, j) => number(from.at(i, j), from.type).replace(/^−.*/, "($&)");
  const powers = () => range(first.columns).map((i) => `e^${put(first, row, i)}`);
  const products = () => joined(range(first.columns).map((i) => `${put(first, row, i)}·${put(second, i, column)}`));
  const ways = {
    products,
    scores: () => `${put(first, row, column)} / √${index.sizes.K}`,
    masked_scores: () => parts.map((part) => put(part, row, column)).join(" + "),
    weights: () => `${powers()[column]} / (${joined(powers())})`,
    heads: products,
  };
  const { type } = tensors.get(`${figure.dataset.path}.${key}`), half = /16$/.test(type); // each step was rounded to it
  const known = parts.length > 0 && parts.every((part) => part.whole);
  const how = known ? `${ways[key]()} ${half ? "≈" : "="} ` : "", rounded = known && half ? `, rounded to ${type}` : "";
  const name = (side, i) => grid.querySelector(`[data-${side}-name="${i}"]`)?.textContent;
  const at = name("row", row), to = name("column", column);
  const place = at && to ? `${at} → ${to}` : [at ?? `row ${row}`, to ?? `column ${column}`].join(", ");
  const value = shown.whole ? number(shown.at(row, column), shown.type) : "one of more numbers than this page holds";
  const title = element("bdi", {}, `${key.replaceAll("_", " ")}, ${place}: `);
  return [element("strong", {}, title), how, element("strong", {}, value), rounded];
}

// The cell that a pointer is at.
function cellAt({ target, clientX, clientY }) {
  const grid = target.closest?.("[data-grid]"), cell = target.closest?.(".cell"), map = target.closest?.(".heat");
  if (!grid?.shown || !(cell || map)) return null;
  if (cell) return [grid, Number(cell.dataset.row), Number(cell.dataset.column)];
  const { rows, columns, heat } = grid.shown, [down, across] = heat?.size ?? [rows, columns];
  const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(map.getScreenCTM().inverse());
  return [grid, Math.floor(y / down * rows), Math.floor(x / across * columns)];
}

// Arrow keys go from cell to cell.
function step(grid, key) {
  const [down, across] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key];
  const [row, column] = grid.cursor ?? [0, 0], bounded = (value, size) => Math.min(Math.max(value, 0), size - 1);
  grid.cursor = [bounded(row + down, grid.shown.rows), bounded(column + across, grid.shown.columns)];
  light(grid, ...grid.cursor);
}
