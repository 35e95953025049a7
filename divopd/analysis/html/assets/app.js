// Which view is shown (the part of the address after #), what is filtered, tables that sort.
const AXES = {
  version: "Learner version (updates)", trained_tokens: "Trained tokens", learner_seconds: "Learner time (virtual s)",
  wall_seconds: "Learner and reading (virtual s)", rollouts: "Rollouts",
};
const state = { suite: null, methods: new Set(), seeds: new Set(), details: new Map() };
const byId = (id) => document.getElementById(id);
const percent = (value) => `${(100 * value).toFixed(1)} %`;

// A block of the page: base64 of gzipped JSON.
async function unpack(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function details(index) {
  if (!state.details.has(index)) state.details.set(index, unpack(`run-${index}`));
  return state.details.get(index);
}

function lookOf(method) { return state.suite.methods.find((m) => m.name === method); }

function address(run, ...more) {
  return `#/${["run", run.setting, run.method, run.seed, ...more].map(encodeURIComponent).join("/")}`;
}

// learning curves ------------------------------------------------------------------------------------------------------

function runSeries(run, axis, alone) {
  const c = run.curve, look = lookOf(run.method);
  const points = c.version.map((version, i) => ({
    x: c[axis][i], y: c.success[i], low: c.wilson_low[i], high: c.wilson_high[i],
    text: `${look.label}, seed ${run.seed}\nversion ${version}: ${percent(c.success[i])} ` +
      `(${c.successes[i]} of ${c.episodes[i]})\n95 % Wilson interval ${percent(c.wilson_low[i])} to ${percent(c.wilson_high[i])}`,
  }));
  return { name: `${run.method}/${run.seed}`, look, points, width: alone ? 2 : 1, opacity: alone ? 1 : 0.4, marks: alone,
    band: byId("bands").checked };
}

function meanSeries(runs, axis) {
  const look = lookOf(runs[0].method), sums = new Map();
  for (const run of runs) {
    run.curve.version.forEach((version, i) => {
      const sum = sums.get(version) || { n: 0, x: 0, y: 0 };
      sums.set(version, { n: sum.n + 1, x: sum.x + run.curve[axis][i], y: sum.y + run.curve.success[i] });
    });
  }
  const points = [...sums].filter(([, sum]) => sum.n === runs.length).sort((a, b) => a[0] - b[0])
    .map(([version, sum]) => ({ x: sum.x / sum.n, y: sum.y / sum.n,
      text: `${look.label}, mean of ${sum.n} seeds\nversion ${version}: ${percent(sum.y / sum.n)}` }));
  return { name: `${runs[0].method}/mean`, look, points, width: 2.5, opacity: 1, marks: true };
}

function curves(setting) {
  const axis = byId("axis").value, series = [];
  for (const method of state.suite.methods.filter((m) => state.methods.has(m.name))) {
    const runs = state.suite.runs.filter((r) => r.setting === setting && r.method === method.name && state.seeds.has(r.seed));
    if (!runs.length) continue;
    const mean = runs.length > 1 && byId("mean").checked;
    if (!mean || byId("each").checked) series.push(...runs.map((run) => runSeries(run, axis, !mean)));
    if (mean) series.push(meanSeries(runs, axis));
  }
  const target = state.suite.settings.find((s) => s.name === setting).target;
  return { label: `Success over training in ${setting}`, xLabel: AXES[axis], series, yRange: [0, 1], percent: true, target };
}

function drawCurves(view) {
  for (const place of view.querySelectorAll("[data-curves]")) {
    chart(place, curves(place.dataset.curves), Number(place.dataset.height));
  }
}

function filters() {
  const box = (name, set, value, ...words) => make("label", {}, make("input", {
    type: "checkbox", name, value, checked: true,
    onchange: (event) => { set[event.target.checked ? "add" : "delete"](value); refresh(); },
  }), ...words);
  for (const method of state.suite.methods) {
    state.methods.add(method.name);
    byId("methods").append(box("method", state.methods, method.name, swatch(method), method.label));
  }
  for (const seed of [...new Set(state.suite.runs.map((run) => run.seed))].sort((a, b) => a - b)) {
    state.seeds.add(seed);
    byId("seeds").append(box("seed", state.seeds, seed, String(seed)));
  }
  for (const [name, words] of Object.entries(AXES)) byId("axis").append(make("option", { value: name }, words));
  for (const id of ["mean", "each", "bands", "axis"]) byId(id).addEventListener("change", refresh);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
}

function refresh() {
  const view = [...document.querySelectorAll("main > section")].find((section) => !section.hidden);
  drawCurves(view);
  for (const row of view.querySelectorAll("tr[data-method]")) {
    row.hidden = !(state.methods.has(row.dataset.method) && state.seeds.has(Number(row.dataset.seed)));
  }
}

// tables ---------------------------------------------------------------------------------------------------------------

// What a cell sorts by: its exact value where it has one, else the first number in it, else its text.
function sortValue(cell) {
  const text = cell.dataset.value ?? cell.textContent.trim();
  const number = text.match(/-?\d+(\.\d+)?(e[-+]?\d+)?/i);
  const wordy = cell.classList.contains("text");
  return text === "" || text === "–" ? null : !wordy && number ? Number(number[0]) : text;
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down === 1 ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows].map((row) => [sortValue(row.cells[column]), row]);
      // cells without a value stay last in both directions
      rows.sort(([a], [b]) => (a === null || b === null ? compare(a, b) : down * compare(a, b)));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    };
    head.replaceChildren(make("button", { type: "button", onclick: sort }, head.textContent));
  });
}

// views ----------------------------------------------------------------------------------------------------------------

function show(view) {
  for (const section of document.querySelectorAll("main > section")) section.hidden = section !== view;
  const form = byId("filters");
  form.hidden = view.querySelector("[data-curves]") === null;
  if (!form.hidden) view.querySelector("[data-curves]").closest(".charts").before(form);
}

function sectionOf(parts) {
  const view = parts[0] || "overview";
  return [...document.querySelectorAll("main > section")].find((section) => section.dataset.view === view &&
    (view !== "setting" || section.dataset.setting === parts[1])) || null;
}

async function route(event) {
  tip.hide();
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  if (parts[0] === "main") return; // the skip link
  const view = sectionOf(parts) || sectionOf([]);
  for (const link of document.querySelectorAll("nav a")) {
    const here = parts[0] === "run" ? `#/setting/${encodeURIComponent(parts[1])}` : location.hash || "#/";
    if (link.getAttribute("href") === here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view.dataset.view === "run") await showRun(view, parts.slice(1));
  else show(view);
  refresh();
  if (event && !(view.dataset.view === "run" && parts.length > 4)) { scrollTo(0, 0); byId("main").focus({ preventScroll: true }); }
  document.body.dataset.ready = location.hash || "#/";
}

async function start() {
  if (!("DecompressionStream" in window)) throw new Error("this browser is older than 2023 and cannot unpack the data");
  state.suite = await unpack("suite");
  filters();
  document.querySelectorAll("table.sortable").forEach(sortable);
  addEventListener("hashchange", (event) => route(event).catch(report));
  await route();
}

function report(error) {
  byId("trouble").textContent = `The page cannot show this: ${error.message}.`;
  byId("trouble").hidden = false;
}

// after all scripts have defined their parts
addEventListener("DOMContentLoaded", () => start().catch(report));
