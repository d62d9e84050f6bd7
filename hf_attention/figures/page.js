"use strict";
// The page's one script: choosers, what is inside a box, and how a cell was computed. No library, no network.
(() => {
  const byId = (id) => document.getElementById(id);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const index = JSON.parse(byId("index").textContent);
  const tensors = new Map(index.tensors.map((tensor) => [tensor.name, tensor]));
  const state = { sentence: 0, kind: document.querySelector("[data-choose=kind] option").value, layer: 0, head: 0 };
  const MINUS_INFINITY = -1e30;

  // Numbers and tints, as canvas.py writes them: Python rounds ties to the even neighbour, and so does this.

  const even = (value) => (value % 1 === 0.5 ? 2 * Math.round(value / 2) : Math.round(value));

  function fixed(size, digits) {
    const tie = (size * 2 ** (digits + 1)) % 2 === 1;
    return (tie ? even(size * 10 ** digits) / 10 ** digits : size).toFixed(digits);
  }

  function scientific(size) {
    let [digits, power] = size.toExponential(1).split("e");
    const exact = size / 10 ** power * 10;
    if (exact % 1 === 0.5) digits = (even(exact) / 10).toFixed(1);
    return `${digits}e${power[0]}${power.slice(1).padStart(2, "0")}`;
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

  // Gradients are small; where three decimals would say nothing, they are written with a power of ten.
  const small = (value, type) => (value && Math.abs(value) < 0.01 ? value.toExponential(1).replaceAll("-", "−") : number(value, type));

  function shade(level) {
    const bounded = Number.isNaN(level) ? 0 : Math.min(Math.max(level, 0), 1);
    const parts = index.dark.map((dark) => even(255 + (dark - 255) * bounded).toString(16).padStart(2, "0"));
    return [`#${parts.join("")}`, bounded > 0.55 ? "#ffffff" : index.ink];
  }

  const level = (value, low, high) => (high > low ? (value - low) / (high - low) : 0);

  function extremes(values) {
    let low = Infinity, high = -Infinity;
    for (const value of values) if (value > MINUS_INFINITY) { low = Math.min(low, value); high = Math.max(high, value); }
    return low <= high ? [low, high] : [0, 1];
  }

  // The numbers of a tensor, decoded when they are first asked for.

  const decoded = new Map();
  function packed(id) {
    if (!decoded.has(id)) {
      const found = JSON.parse(byId(id).textContent);
      decoded.set(id, { ...found, values: found.values && numbers(found.values, found.type) });
    }
    return decoded.get(id);
  }

  function numbers(content, type) {
    if (typeof content !== "string") return content;
    const view = new DataView(Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0)).buffer), wide = type === "f64" ? 8 : 4;
    return Array.from({ length: view.byteLength / wide }, (_, i) => wide === 8 ? view.getFloat64(8 * i, true) : view.getFloat32(4 * i, true));
  }

  // One matrix of a tensor, the `place`th: `at(row, column)` where its numbers are there, `heat` where it is drawn so.
  function matrix(id, place, turned = false) {
    const found = packed(id), heat = (turned ? found.turned : found.heats)?.[place];
    const [rows, columns] = turned ? [...found.matrix].reverse() : found.matrix, start = place * rows * columns;
    const values = found.values?.slice(start, start + rows * columns), whole = Boolean(values);
    const [low, high] = whole ? extremes(values) : [Number(heat.low), Number(heat.high)];
    const corner = whole ? [] : numbers(heat.corner, found.type), wide = Math.min(columns, index.corner[1]);
    const at = whole ? (row, column) => values[turned ? column * rows + row : row * columns + column]
      : (row, column) => (column < wide ? corner[row * wide + column] : NaN) ?? NaN;
    return { rows, columns, heat, low, high, type: found.type, whole, at };
  }

  // Which matrices of a tensor belong to the chosen sentence: their first place, and the axes in front of each.
  function outline(tensor) {
    const kept = tensor.axes.map((axis, i) => [axis, tensor.shape[i]]).filter(([axis]) => axis !== "B" && axis !== "1");
    const inner = kept.slice(-2), outer = kept.slice(0, -2);
    const many = outer.reduce((product, [, size]) => product * size, 1);
    return { inner, outer, many, first: tensor.axes[0] === "B" ? state.sentence * many : 0 };
  }

  // Figures: those of other choices are hidden; those of other layers and heads get their numbers put in.

  const pathOf = (kind, layer) => kind.replace(".", `.layers.${layer}.`);

  function show() {
    state.layer = Math.min(state.layer, index.layers[state.kind] - 1);
    for (const chooser of all("[data-choose]")) {
      const name = chooser.dataset.choose;
      chooser.value = state[name];
      if (name === "layer") all("option", chooser).forEach((option, i) => { option.disabled = i >= index.layers[state.kind]; });
    }
    for (const figure of all(".figure")) {
      figure.hidden = ["sentence", "kind"].some((name) => name in figure.dataset && figure.dataset[name] !== String(state[name]));
      if (!figure.hidden && !figure.scrollLeft && !figure.closest("#figure-1")) figure.scrollLeft = (figure.scrollWidth - figure.clientWidth) / 2;
      if (!figure.hidden && figure.dataset.path) fill(figure, pathOf(figure.dataset.kind, state.layer));
    }
  }

  function fill(figure, path) {
    figure.dataset.path = path;
    all("[data-grid]", figure).forEach((grid) => {
      const key = grid.dataset.grid, id = `value:${path}.${key}`;
      const { many, first } = outline(tensors.get(`${path}.${key}`));
      const head = Number(grid.closest("[data-head]")?.dataset.head ?? state.head);
      grid.shown = matrix(id, first + Math.min(head, many - 1), index.transposed.includes(key));
      put(grid, grid.shown);
    });
    const lines = all("[data-lines]", figure);
    for (const group of lines) drawLines(group, path);
    if (lines.length) figure.querySelector("desc").textContent = `The strongest: ${lines.map((group) => group.strongest).join(", ")}.`;
    for (const box of all("[data-open]", figure)) box.dataset.open = path;
    const svg = figure.querySelector("svg"), title = svg.querySelector("title"), heads = figure.querySelector("[data-head]");
    const renamed = (text) => text.replace(/\w+\.layers\.\d+\.\w+_attn/, path).replace(/(coder layer )\d+/, `$1${state.layer}`)
      .replace(/(head (?:i = )?)\d+/, (whole, words) => (heads ? whole : words + state.head));
    title.textContent = renamed(title.textContent);
    svg.setAttribute("aria-label", title.textContent);
    for (const line of all("text.bold, text.faint", svg)) {
      const named = "rowName" in line.dataset || "columnName" in line.dataset || line.closest("[data-grid]");
      if (!named && line.textContent !== renamed(line.textContent)) line.textContent = renamed(line.textContent);
    }
  }

  // Puts the numbers of `shown` into a drawn grid.
  function put(grid, shown) {
    const data = grid.dataset;
    if (data.limits === "given") Object.assign(shown, { low: Number(data.low), high: Number(data.high) });
    else Object.assign(data, { low: exact(shown.low), high: exact(shown.high) });
    for (const cell of all(".cell", grid)) {
      const value = shown.at(Number(cell.dataset.row), Number(cell.dataset.column));
      const [fill, ink] = shade(level(value, shown.low, shown.high));
      cell.setAttribute("fill", fill);
      cell.dataset.value = exact(value);
      if (cell.nextElementSibling.matches(".hidden")) cell.nextElementSibling.remove();
      const text = cell.nextElementSibling;
      text.textContent = number(value, shown.type);
      text.style.fill = ink;
      text.setAttribute("fill", ink);
      if (value < MINUS_INFINITY) {
        const hatch = cell.cloneNode();
        hatch.removeAttribute("fill");
        for (const name of Object.keys(hatch.dataset)) delete hatch.dataset[name];
        hatch.setAttribute("class", "hidden");
        cell.after(hatch);
      }
    }
    const heat = grid.querySelector(".heat");
    if (!heat) return;
    const paths = levelPaths(shown);
    for (const path of all("[data-level]", heat)) path.setAttribute("d", paths.get(path.dataset.level) ?? "");
    const summary = grid.querySelector(".summary");
    if (summary) summary.textContent = shown.heat.summary;
  }

  // Lines from queries to keys, as heads.py draws them.
  function drawLines(group, path) {
    const [left, right, top, row, queries, keys] = group.dataset.lines.split(" ").map(Number), head = Number(group.dataset.head);
    const { many, first } = outline(tensors.get(`${path}.weights`)), shown = matrix(`value:${path}.weights`, first + head);
    if (many <= head || !shown.whole) return;
    const lines = Array.from({ length: queries * keys }, (_, i) => [Math.floor(i / keys), i % keys])
      .map(([query, key]) => [shown.at(query, key), query, key]).sort((one, other) => one[0] - other[0]);
    const across = (left + right) / 2, y = (i) => top + (i + 0.5) * row;
    group.replaceChildren(...lines.filter(([weight]) => weight >= index.least).map(([weight, query, key]) => {
      const d = `M${left} ${y(query)}C${across} ${y(query)} ${across} ${y(key)} ${right} ${y(key)}`;
      return drawn("path", { class: "arc", d, fill: "none", "stroke-opacity": 0.08 + 0.92 * weight, "stroke-width": 0.7 + 3.8 * weight,
        "data-query": query, "data-key": key, "data-weight": exact(weight) });
    }));
    const [weight, query, key] = lines.at(-1), [from, to] = tensors.get(`${path}.weights`).axes.slice(2).map((axis) => index.tokens[axis][state.sentence]);
    group.strongest = `head ${head} from ${from[query]} to ${to[key]} (${number(weight)})`;
  }

  function drawn(tag, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  const exact = (value) => String(Number(value.toPrecision(7)));

  // The squares of a heat map, joined to one path for each level: "-1" is −∞ or no number. Where each has a number of its
  // own it is tinted here, between the limits of its grid; what has been pooled was tinted before.
  function levelPaths(shown) {
    const pooled = shown.heat && !(shown.whole && shown.heat.size[0] === shown.rows && shown.heat.size[1] === shown.columns);
    const [rows, columns] = pooled ? shown.heat.size : [shown.rows, shown.columns], paths = new Map();
    for (let i = 0; i < rows * columns; i++) {
      const row = Math.floor(i / columns), column = i % columns, key = pooled ? shown.heat.levels[i] : tint(shown.at(row, column));
      paths.set(key, `${paths.get(key) ?? ""}M${column} ${row}h1v1h-1z`);
    }
    return new Map([...paths].map(([key, path]) => [key === "." ? "-1" : String(parseInt(key, 36)), path]));

    function tint(value) {
      if (!(value > MINUS_INFINITY)) return ".";
      const bounded = Math.min(Math.max(value, shown.low), shown.high);
      return even((bounded - shown.low) / (shown.high - shown.low || 1) * (index.levels - 1)).toString(36);
    }
  }

  // What a cell was computed from lights up, and a line says the sum.

  const gridsOf = (figure, key) => all(`[data-grid="${key}"]`, figure);

  function frame(grid, row, column, kind = "") {
    const { rows, columns } = grid.shown, heat = grid.querySelector(".heat"), cell = grid.querySelector(".cell");
    const read = (name) => Number(cell.getAttribute(name));
    const size = grid.shown.heat?.size ?? [rows, columns];
    const [x, y, width, height] = heat ? [0, 0, size[1] / columns, size[0] / rows] : ["x", "y", "width", "height"].map(read);
    (heat ?? grid).append(drawn("rect", { x: x + (column ?? 0) * width, y: y + (row ?? 0) * height,
      width: column === null ? columns * width : width, height: row === null ? rows * height : height, class: `light-on ${kind}` }));
  }

  function light(grid, row, column) {
    const figure = grid.closest(".figure"), key = grid.dataset.grid;
    darken();
    for (const [from, way] of index.made_from[key] ?? [])
      for (const source of gridsOf(figure, from)) frame(source, way === "column" ? null : row, way === "row" ? null : column);
    frame(grid, row, column, "here");
    const line = figure.closest(".recompute")?.querySelector(".sum");
    if (line) line.replaceChildren(...sum(figure, grid, row, column));
  }

  const darken = () => all(".light-on").forEach((rect) => rect.remove());

  const TERMS = 12; // of a sum that is written out; of a longer one half as many, and how many there are

  function joined(terms, sign) {
    return terms.length <= TERMS ? terms.join(sign) : `${terms.slice(0, TERMS / 2).join(sign)}${sign}… (${terms.length} in all)`;
  }

  // `scores, dog → hund: 0.612 / 2.000 = 0.306`
  function sum(figure, grid, row, column) {
    const key = grid.dataset.grid, shown = grid.shown, name = (side, i) => grid.querySelector(`[data-${side}-name="${i}"]`)?.textContent ?? i;
    const parts = (index.made_from[key] ?? []).map(([from]) => gridsOf(figure, from)[0]?.shown).filter(Boolean);
    const value = shown.whole ? number(shown.at(row, column), shown.type) : "a number that is too many for this page";
    const put = (from, i, j) => { const text = number(from.at(i, j), from.type); return text.startsWith("−") ? `(${text})` : text; };
    const of = (from, along) => Array.from({ length: from[along] }, (_, i) => i);
    let how = "";
    if (parts.length && parts.every((part) => part.whole)) {
      const [first, second] = parts;
      if (key === "products" || key === "heads")
        how = joined(of(first, "columns").map((i) => `${put(first, row, i)}·${put(second, i, column)}`), " + ");
      else if (key === "scores") how = `${put(first, row, column)} / √${index.sizes.K}`;
      else if (key === "masked_scores") how = parts.map((part) => put(part, row, column)).join(" + ");
      else if (key === "weights") {
        const powers = of(first, "columns").map((i) => `e^${put(first, row, i)}`);
        how = `${powers[column]} / (${joined(powers, " + ")})`;
      }
    }
    const place = grid.querySelector("[data-row-name]") && grid.querySelector("[data-column-name]")
      ? `${name("row", row)} → ${name("column", column)}` : `row ${name("row", row)}, column ${name("column", column)}`;
    const title = element("strong", {}, element("bdi", {}, `${key.replaceAll("_", " ")}, ${place}: `));
    return [title, how ? `${how} = ` : "", element("strong", {}, value)];
  }

  // The cell of a grid below a pointer.
  function cellAt(event) {
    const grid = event.target.closest?.("[data-grid]");
    if (!grid?.shown) return null;
    const cell = event.target.closest(".cell"), heat = event.target.closest(".heat");
    if (cell) return [grid, Number(cell.dataset.row), Number(cell.dataset.column)];
    if (!heat) return null;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(heat.getScreenCTM().inverse());
    const size = grid.shown.heat?.size ?? [grid.shown.rows, grid.shown.columns];
    return [grid, Math.floor(at.y / size[0] * grid.shown.rows), Math.floor(at.x / size[1] * grid.shown.columns)];
  }

  // What is inside: all tensors of a path, as tables.

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // Formulas as the paper sets them: `W_i^Q` with small letters below and above.
  function formula(text) {
    return text.split(/([_^](?:model|ff|\d+|[A-Za-z])(?![A-Za-z]))/).map((piece) =>
      /^[_^]/.test(piece) && piece.length > 1 ? element(piece[0] === "_" ? "sub" : "sup", {}, piece.slice(1)) : piece);
  }

  const NAMES = { H: "head", N: "layer", S: "source", T: "target" };

  // What stands at each index of an axis: a token, a head, or the index itself.
  function names(axis, size, tensor) {
    const search = /^search\.(\d+)\./.exec(tensor.name), sentence = search ? Number(search[1]) : state.sentence;
    const labels = tensor.name.startsWith("loss.") || tensor.name === "target.labels";
    const words = axis === "S" ? index.tokens.S[sentence] : axis === "W" ? index.words
      : axis === "T" ? (search ? index.winners[sentence] : index.tokens[labels ? "labels" : "T"][sentence]) : [];
    return Array.from({ length: size }, (_, i) => (axis in NAMES && !words[i] ? `${NAMES[axis]} ${i}` : words[i] ?? String(i)));
  }

  const MATRICES = 8; // of a tensor, before a reader asks for more

  function tensorBody(tensor, gradient) {
    const { inner, outer, many, first } = outline(tensor), id = `${gradient ? "gradient" : "value"}:${tensor.name}`;
    const box = element("div", { class: "matrices" });
    const add = (from, to) => { for (let i = from; i < Math.min(to, many); i++) box.append(one(i)); };

    function one(i) {
      let rest = i;
      const place = outer.map((_, k) => k).reverse().map((k) => {
        const [axis, size] = outer[k], at = rest % size;
        rest = Math.floor(rest / size);
        const name = names(axis, size, tensor)[at];
        return axis === "H" || axis === "N" ? name : `${NAMES[axis] ?? axis} ${at}: ${name}`;
      }).reverse().join(", ");
      const [rows, columns] = inner.length === 2 ? inner : [...inner, ["", 1], ["", 1]];
      return table(matrix(id, first + i), names(...rows, tensor), columns[0] ? names(...columns, tensor) : ["value"], place, gradient);
    }

    add(0, MATRICES);
    if (many > MATRICES) {
      const more = element("button", { type: "button" }, `Show the other ${many - MATRICES}`);
      more.addEventListener("click", () => { more.remove(); add(MATRICES, many); });
      box.append(more);
    }
    return box;
  }

  function table(shown, rows, columns, caption, gradient) {
    const box = element("div", { class: "scroll" }), write = gradient ? small : number;
    if (shown.heat) box.append(heatMap(shown), element("p", {}, shown.heat.summary));
    const [height, width] = shown.heat ? index.corner : [shown.rows, shown.columns];
    const where = [caption, shown.heat && `corner of ${shown.rows} rows and ${shown.columns} columns`].filter(Boolean).join(": ");
    const head = columns.slice(0, width).map((name) => element("th", { scope: "col" }, element("bdi", {}, name)));
    const body = rows.slice(0, height).map((name, i) => element("tr", {}, element("th", { scope: "row" }, element("bdi", {}, name)),
      ...head.map((_, j) => cell(shown.at(i, j)))));
    box.append(element("table", { class: "numbers" }, ...(where ? [element("caption", {}, where)] : []),
      element("thead", {}, element("tr", {}, element("td"), ...head)), element("tbody", {}, ...body)));
    return box;

    function cell(value) {
      const made = element("td", { "data-value": exact(value) }, write(value, shown.type));
      if (shown.type.startsWith("f") || shown.heat) [made.style.background, made.style.color] = shade(level(value, shown.low, shown.high));
      return made;
    }
  }

  function heatMap(shown) {
    const [rows, columns] = shown.heat.size, label = `Heat map: ${shown.heat.summary}`;
    const svg = drawn("svg", { class: "heat-map", viewBox: `0 0 ${columns} ${rows}`, role: "img", "aria-label": label });
    for (const [key, d] of levelPaths(shown))
      svg.append(drawn("path", { d, fill: key === "-1" ? "#cccccc" : shade(Number(key) / (index.levels - 1))[0] }));
    return svg;
  }

  const OPEN = 24; // tensors that are shown at once; of more, each waits to be unfolded

  function describe(tensor, unfolded) {
    const short = tensor.name.slice(opened.path.length + 1) || tensor.name;
    const box = element("details", { class: "tensor", ...(unfolded && { open: "" }) }, element("summary", {}, element("code", {}, short),
      element("span", { class: "symbol" }, ...formula(tensor.symbol))), element("p", { class: "shape" }, `${tensor.text} · ${tensor.type}`));
    const fillOnce = (details, gradient) => details.addEventListener("toggle", () => {
      if (details.open && !details.querySelector(":scope > .matrices")) details.append(tensorBody(tensor, gradient), ...(gradient ? [] : more));
    });
    const more = [];
    if (tensor.gradient) {
      more.push(element("details", {}, element("summary", {}, "gradient of the loss")));
      fillOnce(more[0], true);
    }
    fillOnce(box, false);
    return box;
  }

  const opened = { path: null, from: null };

  function open(path, from = opened.from) {
    Object.assign(opened, { path, from });
    const list = index.tensors.filter((tensor) => tensor.name.startsWith(`${path}.`));
    const [, stack, layer] = /^(encoder|decoder)\.layers\.(\d+)/.exec(path) ?? [];
    all(".opened").forEach((box) => box.classList.remove("opened"));
    from?.closest(".link")?.classList.add("opened");
    byId("inside").classList.add("filled");
    byId("inside").scrollTop = 0;
    byId("inside-title").textContent = path;
    byId("inside-status").textContent = `${list.length} tensor${list.length === 1 ? "" : "s"}, of sentence ${state.sentence} where there is one for each`;
    const choosers = byId("inside-choosers");
    choosers.hidden = !stack;
    if (stack) {
      const select = element("select", {}, ...Array.from({ length: index.layers[`${stack}.self_attn`] }, (_, i) =>
        element("option", { value: i, ...(i === Number(layer) && { selected: "" }) }, `${i}`)));
      select.addEventListener("change", () => { open(path.replace(/\d+/, select.value)); byId("inside").querySelector("select").focus(); });
      choosers.replaceChildren(element("label", {}, "Layer ", select));
    }
    byId("inside-tensors").replaceChildren(...list.map((tensor) => describe(tensor, list.length <= OPEN)));
  }

  // What a reader does.

  function choose(changes) {
    for (const [name, value] of Object.entries(changes)) state[name] = name === "kind" ? value : Number(value);
    darken();
    show();
    if (opened.path) open(opened.path);
  }

  function move(event, grid) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !grid.shown) return;
    event.preventDefault();
    const bounded = (value, size) => Math.min(Math.max(value, 0), size - 1);
    const at = grid.cursor ?? [0, 0], shown = grid.shown;
    grid.cursor = [bounded(at[0] + step[0], shown.rows), bounded(at[1] + step[1], shown.columns)];
    light(grid, ...grid.cursor);
  }

  function follow(link) {
    if (link.dataset.set) choose(Object.fromEntries(link.dataset.set.split(" ").map((each) => each.split("="))));
    if (link.dataset.open) open(link.dataset.open, link);
  }

  function reveal(box) {
    open(box.dataset.open, box);
    const { top, bottom } = byId("inside-title").getBoundingClientRect();
    if (top < 0 || bottom > innerHeight) byId("inside").scrollIntoView();
  }

  document.addEventListener("change", ({ target }) => {
    if (target.dataset.choose) choose({ [target.dataset.choose]: target.value });
  });
  document.addEventListener("click", (event) => {
    const box = event.target.closest("g[data-open]"), link = event.target.closest("a[href^='#']");
    if (box) reveal(box);
    if (!link) return;
    follow(link);
    if (location.protocol !== "about:") return;
    event.preventDefault(); // in a notebook's frame a link would leave for the notebook
    document.querySelector(link.hash).scrollIntoView();
  });
  document.addEventListener("keydown", (event) => {
    const box = event.target.closest("g[data-open]"), grid = event.target.closest("[data-grid][tabindex]");
    if (box && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      reveal(box);
      byId("inside-title").focus();
    }
    if (event.key === "Escape" && byId("inside").contains(event.target)) opened.from?.focus();
    if (grid) move(event, grid);
  });
  for (const kind of ["pointermove", "pointerdown"]) document.addEventListener(kind, (event) => {
    const found = cellAt(event);
    if (found) light(...found);
  });
  document.addEventListener("focusin", ({ target }) => {
    if (target.matches("[data-grid][tabindex]") && target.matches(":focus-visible")) light(target, ...(target.cursor ?? [0, 0]));
  });

  for (const grid of all(".figure[data-path] [data-grid]")) {
    const title = grid.querySelector(".bold")?.textContent ?? grid.dataset.grid;
    const attributes = { tabindex: "0", role: "group", "aria-label": `${title}: a matrix; arrow keys go from cell to cell` };
    for (const [name, value] of Object.entries(attributes)) grid.setAttribute(name, value);
    grid.closest("svg").setAttribute("role", "group"); // no mere picture any more
  }
  window.hfAttention = { number, shade, state };
  show();
})();
