// What a reader does: chooses, points, presses keys, follows links.

function choose(changes) {
  for (const [name, value] of Object.entries(changes)) state[name] = name === "kind" ? value : Number(value);
  darken();
  show();
  relight();
  if (opened.path) lookInside(opened.path);
}

function reveal(box) {
  lookInside(box.dataset.open, box);
  const { top, bottom } = byId("inside-title").getBoundingClientRect();
  if (top < 0 || bottom > innerHeight) byId("inside").scrollIntoView();
}

function follow(link, event) {
  const { set, open: path } = link.dataset;
  if (set) choose(Object.fromEntries(set.split(" ").map((each) => each.split("="))));
  if (path) lookInside(path, link);
  if (location.protocol !== "about:") return;
  event.preventDefault(); // in a notebook's frame the link would leave for the notebook
  document.querySelector(link.hash).scrollIntoView();
}

document.addEventListener("change", ({ target }) => {
  if (target.dataset.choose) choose({ [target.dataset.choose]: target.value });
  if (target.id === "all-terms") relight();
});

document.addEventListener("click", (event) => {
  const box = event.target.closest("g[data-open]"), link = event.target.closest("a[href^='#']");
  if (box) reveal(box);
  if (link) follow(link, event);
});

document.addEventListener("keydown", (event) => {
  const { key, target } = event, box = target.closest("g[data-open]"), grid = target.closest("[data-grid][tabindex]");
  if (key === "Escape" && byId("inside").contains(target)) opened.from?.focus();
  if (box && (key === "Enter" || key === " ")) {
    reveal(box);
    byId("inside-title").focus();
  } else if (grid && key.startsWith("Arrow")) step(grid, key);
  else return;
  event.preventDefault();
});

for (const kind of ["pointermove", "pointerdown"]) document.addEventListener(kind, (event) => {
  const found = cellAt(event);
  if (found) light(...found);
});

document.addEventListener("focusin", ({ target }) => {
  if (target.matches("[data-grid][tabindex]:focus-visible")) light(target, ...(target.cursor ?? [0, 0]));
});

addEventListener("resize", hint);

show();
