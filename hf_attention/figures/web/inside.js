// What is inside a box: all tensors of its path, with their symbols, shapes and numbers.

const opened = { path: null, from: null };
const UNFOLDED = 24; // tensors; where there are more, each waits to be unfolded
const MATRICES = 8; // of a tensor, before a reader asks for more
const NAMES = { H: "head", N: "layer", S: "source", T: "target" };

function lookInside(path, from = opened.from) {
  Object.assign(opened, { path, from });
  const list = index.tensors.filter((tensor) => tensor.name.startsWith(`${path}.`));
  all(".opened").forEach((box) => box.classList.remove("opened"));
  from?.closest(".link")?.classList.add("opened");
  byId("inside").classList.add("filled");
  byId("inside").scrollTop = 0;
  byId("inside-title").textContent = path;
  const count = `${list.length} tensor${list.length === 1 ? "" : "s"}`;
  byId("inside-status").textContent = `${count}; where each sentence has its own, those of sentence ${state.sentence}`;
  const layers = layerChooser(path);
  byId("inside-choosers").hidden = !layers;
  byId("inside-choosers").replaceChildren(...(layers ? [layers] : []));
  byId("inside-tensors").replaceChildren(...list.map((tensor) => describe(tensor, list.length <= UNFOLDED)));
}

function layerChooser(path) {
  const [, stack, layer] = /^(encoder|decoder)\.layers\.(\d+)/.exec(path) ?? [];
  if (!stack) return null;
  const options = range(index.layers[`${stack}.self_attn`]).map((i) => element("option", {}, String(i)));
  const select = element("select", {}, ...options);
  select.value = layer;
  select.addEventListener("change", () => {
    lookInside(path.replace(/\d+/, select.value));
    byId("inside-choosers").querySelector("select").focus();
  });
  return element("label", {}, "Layer ", select);
}

function describe(tensor, unfolded) {
  const name = element("code", {}, tensor.name.slice(opened.path.length + 1));
  const summary = element("summary", {}, name, element("span", { class: "symbol" }, ...formula(tensor.symbol)));
  const shape = element("p", { class: "shape" }, `${tensor.text} · ${tensor.type}`);
  const box = element("details", { class: "tensor" }, summary, shape);
  const gradient = element("details", {}, element("summary", {}, "gradient of the loss"));
  whenUnfolded(box, () => [matrices(tensor, "value"), ...(tensor.gradient ? [gradient] : [])]);
  whenUnfolded(gradient, () => [matrices(tensor, "gradient")]);
  box.open = unfolded;
  return box;
}

function whenUnfolded(details, content) {
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector(".matrices")) return;
    details.append(...content());
    for (const box of all(".scroll", details)) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; // for keys
  });
}

// Formulas as the paper sets them: `W_i^Q` with small letters below and above.
function formula(text) {
  const pieces = text.split(new RegExp(index.scripts)); // what stands between, "_" or "^", the script, what stands ...
  const set = (i) => element(pieces[i] === "_" ? "sub" : "sup", {}, pieces[i + 1]);
  return range((pieces.length - 1) / 3).flatMap((i) => [pieces[3 * i], set(3 * i + 1)]).concat(pieces.at(-1));
}

// The words along an axis; none where it has no words but numbers.
function tokens(tensor, axis) {
  const [, search] = /^search\.(\d+)\./.exec(tensor.name) ?? [], sentence = search ?? state.sentence;
  const labels = tensor.name.startsWith("loss.") || tensor.name === "target.labels";
  if (axis === "S") return index.tokens.S[sentence];
  if (axis === "T") return search ? index.winners[search] : index.tokens[labels ? "labels" : "T"][sentence];
  return axis === "W" ? index.words : [];
}

function names(tensor, [axis, size]) {
  const words = tokens(tensor, axis);
  return range(size).map((i) => words[i] ?? (axis in NAMES ? `${NAMES[axis]} ${i}` : String(i)));
}

function matrices(tensor, what) {
  const { inner, outer, many, first } = outline(tensor, state.sentence);
  const [rows, columns] = [...inner, ["", 1], ["", 1]];
  const across = inner.length === 2 ? names(tensor, columns) : ["value"];
  const box = element("div", { class: "matrices" }), { like } = packed(`${what}:${tensor.name}`);
  if (like) {
    const twin = element("code", {}, like.split(".").pop());
    box.append(element("p", {}, "The same numbers as those of ", twin, `, by ${NAMES[tensor.axes[1]]} position first.`));
    return box;
  }
  const add = (places) => box.append(...places.map((i) =>
    table(matrix(`${what}:${tensor.name}`, first + i), names(tensor, rows), across, place(tensor, outer, i), what)));
  add(range(many).slice(0, MATRICES));
  if (many > MATRICES) {
    const more = element("button", { type: "button" }, `Show the other ${many - MATRICES}`);
    more.addEventListener("click", () => { more.remove(); add(range(many).slice(MATRICES)); });
    box.append(more);
  }
  return box;
}

// Which of its tensor's matrices one is: `head 1`, or `source 2: dog`.
function place(tensor, outer, i) {
  const parts = [];
  for (const [axis, size] of [...outer].reverse()) {
    const name = names(tensor, [axis, size])[i % size];
    parts.unshift(name.startsWith(NAMES[axis]) ? name : `${NAMES[axis] ?? axis} ${i % size}: ${name}`);
    i = Math.floor(i / size);
  }
  return parts.join(", ");
}

function table(shown, rows, columns, caption, what) {
  const [height, width] = shown.heat ? index.corner : [shown.rows, shown.columns];
  const of = shown.heat ? `corner of ${shown.rows} rows and ${shown.columns} columns` : "";
  const named = (scope, name) => element("th", { scope }, element("bdi", {}, name));
  const body = rows.slice(0, height).map((name, i) => element("tr", {}, named("row", name),
    ...columns.slice(0, width).map((_, j) => cell(shown, shown.at(i, j), what))));
  const top = element("tr", {}, element("td"), ...columns.slice(0, width).map((name) => named("col", name)));
  const words = [caption, of].filter(Boolean).join(": ");
  const told = shown.heat ? [shown.heat.summary, shown.heat.cells].filter(Boolean) : [];
  const heat = shown.heat ? [heatMap(shown), ...told.map((line) => element("p", {}, line))] : [];
  return element("div", { class: "scroll" }, ...heat, element("table", { class: "numbers" },
    ...(words ? [element("caption", {}, words)] : []), element("thead", {}, top), element("tbody", {}, ...body)));
}

function cell(shown, value, what) {
  const text = what === "gradient" ? fine(value) : number(value, shown.type);
  const made = element("td", { "data-value": exact(value) }, text);
  if (shown.type.startsWith("f")) [made.style.background, made.style.color] = tint(value, shown);
  return made;
}

function heatMap(shown) {
  const [rows, columns] = shown.heat.size, label = `Heat map: ${shown.heat.summary}`;
  const svg = drawn("svg", { class: "heat-map", viewBox: `0 0 ${columns} ${rows}`, role: "img", "aria-label": label });
  svg.append(...Object.entries(levelPaths(shown)).map(([level, d]) =>
    drawn("path", { d, fill: level === "-1" ? "#cccccc" : shade(Number(level) / (index.levels - 1))[0] })));
  return svg;
}
