// A run's page: metrics of its updates, what one update chose from, episodes in words.
const METRICS = {
  objective: "Objective (nats)", kl_per_token: "KL a token (nats)", grad_norm: "Gradient norm",
  effective_rollouts: "Effective rollouts", top_rollout_token_share: "Top rollout's share of tokens",
  turns_per_rollout: "Turns a rollout", dead_row_share: "Dead rows (share)", mean_age: "Mean age (versions)",
  queue_length: "Turns left waiting", row_tokens: "Row tokens", read_wait: "Waited for turns (virtual s)",
  learner_seconds: "Learner (virtual s)", drift: "Drift (nats)", never_selected_share: "Rollouts never selected (share)",
};
const KNOWN = { stale: "too old (stale)", expired: "waited too long (expired)", unread: "still waiting at the end" };

function terms(entries) {
  return make("dl", {}, entries.flatMap(([name, value]) => [make("dt", {}, name),
    make("dd", {}, typeof value === "object" && value !== null ? JSON.stringify(value) : String(value))]));
}

async function showRun(view, parts) {
  const [setting, method, seed] = parts;
  const index = state.suite.runs.findIndex((r) => r.setting === setting && r.method === method && String(r.seed) === seed);
  if (index < 0) throw new Error(`there is no run ${parts.slice(0, 3).join(" / ")}`);
  const run = state.suite.runs[index], log = await details(index);
  const wanted = Object.fromEntries([[parts[3], parts[4]], [parts[5], parts[6]]].filter(([name]) => name));
  if (view.dataset.run !== String(index)) {
    view.replaceChildren(...runPage(run, log));
    view.dataset.run = String(index);
  }
  show(view);
  drawMetrics(view, run, log, wanted.update);
  if (log.turns && Object.keys(log.turns.at).length) drawUpdate(view, run, log, wanted.update);
  if (log.episodes && log.episodes.length) drawEpisode(view, run, log, wanted.episode);
  if (wanted.episode !== undefined) view.querySelector("#episodes").scrollIntoView();
  else if (wanted.update !== undefined) view.querySelector("#update").scrollIntoView();
}

function runPage(run, log) {
  const label = lookOf(run.method).label, missing = log.missing || [];
  const facts = [["Status", run.status], ["Start", run.start], ["Peak", run.peak], ["Mean of the last five", run.final5_mean],
    ["nAUC", run.nauc]].map(([name, value]) => [name, typeof value === "number" ? percent(value) : value ?? "–"]);
  const parts = [
    make("h1", {}, `${label}, seed ${run.seed}`),
    make("p", {}, "in ", make("a", { href: `#/setting/${encodeURIComponent(run.setting)}` }, run.setting)),
    terms(facts),
    make("details", {}, make("summary", {}, "Configuration and provenance"),
      terms([...Object.entries(log.config || {}), ["commit", (log.git || {}).commit || "–"],
        ...Object.entries(log.hashes || {}).map(([name, value]) => [`SHA-256 of ${name}`, value || "–"])])),
    missing.length ? make("p", { class: "note" }, `Not beside this report, so not shown: ${missing.join(", ")}. ` +
      (missing.includes("transcripts.parquet") ? "Runs of before transcripts were kept have none." : "")) : null,
    make("h2", {}, "Updates"),
    make("div", { class: "charts small", id: "metrics" }),
  ];
  if (log.turns && Object.keys(log.turns.at).length) parts.push(make("h2", { id: "update" }, "One update: which turns it chose"), make("div", { id: "chosen" }));
  if (log.episodes && log.episodes.length) parts.push(make("h2", { id: "episodes" }, "Episodes, token by token"), make("div", { id: "told" }));
  return parts.filter((part) => part);
}

function nearest(values, wanted) {
  return values.reduce((best, v) => (Math.abs(v - wanted) < Math.abs(best - wanted) ? v : best), values[0]);
}

function drawMetrics(view, run, log, chosen) {
  const place = view.querySelector("#metrics");
  if (!log.metrics) return;
  const look = { ...lookOf(run.method), dash: [] }, kept = log.turns ? Object.keys(log.turns.at).map(Number) : [];
  const now = kept.length ? (chosen === undefined ? kept[0] : Number(chosen)) : null;
  const charts = Object.entries(METRICS).filter(([name]) => log.metrics[name]).map(([name, words]) => {
    const points = log.metrics[name].map((y, i) => ({ x: log.metrics.update[i], y,
      text: `update ${log.metrics.update[i]}\n${words}: ${y === null ? "–" : y}` }));
    const plot = make("div", { class: "plot" });
    const spec = { label: `${words} by update`, xLabel: "Update", now, series: [{ name, look, points, width: 1.5, opacity: 1 }],
      pick: kept.length ? (x) => { location.hash = address(run, "update", nearest(kept, x)); } : null };
    return { figure: make("figure", { "data-metric": name }, make("h3", {}, words), plot), plot, spec };
  });
  place.replaceChildren(...charts.map((c) => c.figure));
  for (const c of charts) chart(c.plot, c.spec, 150);
}

// Rows of one update as objects; `at` holds steps from row to row, and a letter of the fate for each.
function rowsAt(turns, update) {
  const [steps, fates] = turns.at[update];
  let i = 0;
  return steps.map((step, j) => {
    i += step;
    const get = (name) => turns[name][i];
    return { fate: fates[j], rollout: `${get("explorer_batch")}.${get("task_index")}.${get("run")}`, turn: get("turn"),
      of: get("rollout_turns"), version: get("version"), age: update - get("version"), tokens: get("valid_tokens"),
      score: get("disagreement"), action: turns.actions[get("action")], task: turns.tasks[get("task")],
      outcome: get("success") ? "success" : "failure" };
  });
}

function chooser(label, values, words, value, go) {
  const i = values.indexOf(value), step = (by, text) => make("button", { type: "button", class: "plain",
    disabled: values[i + by] === undefined, onclick: () => go(values[i + by]) }, text);
  const select = make("select", { onchange: (event) => go(values[event.target.selectedIndex]) },
    values.map((v, j) => make("option", { selected: j === i }, words(v, j))));
  return make("div", { class: "bar" }, make("label", {}, label, select), step(-1, "← before"), step(1, "next →"));
}

function drawUpdate(view, run, log, wanted) {
  const kept = Object.keys(log.turns.at).map(Number), all = log.metrics ? log.metrics.update.length : kept.length;
  const update = wanted === undefined ? kept[0] : nearest(kept, Number(wanted)), rows = rowsAt(log.turns, update);
  const counts = {};
  for (const row of rows) counts[row.fate] = (counts[row.fate] || 0) + 1;
  const legend = make("ul", { class: "legend" }, Object.entries(state.suite.fates).filter(([fate]) => counts[fate])
    .map(([fate, words]) => make("li", { "data-fate": fate }, make("span", { class: `cell fate-${fate}` }, counts[fate]), words)));
  const few = kept.length < all ? `This page holds the turns of ${kept.length} of the run's ${all} updates, evenly spread.`
    : `This page holds the turns of all ${all} updates.`;
  const many = rows.length - (counts.s || 0);
  view.querySelector("#chosen").replaceChildren(
    make("p", { class: "note" }, `${few} A turn that was read and not chosen stays pending until it is too old.`),
    chooser("Update ", kept, (q) => String(q), update, (q) => { location.hash = address(run, "update", q); }),
    make("p", {}, `Update ${update} took ${counts.s || 0} turns; ${many} others were queued, read or dropped then:`),
    legend, rolloutMap(run, log, rows), turnTable(rows, counts),
  );
}

function rolloutMap(run, log, rows) {
  const groups = new Map();
  for (const row of rows) groups.set(row.rollout, [...(groups.get(row.rollout) || []), row]);
  const chosen = (list) => list.filter((row) => row.fate === "s").length;
  const rank = (list) => chosen(list) * 1000 + list.filter((row) => "cfq".includes(row.fate)).length;
  const told = new Map((log.episodes || []).map((episode, i) => [episode.id.join("."), i]));
  const lines = [...groups].sort((a, b) => rank(b[1]) - rank(a[1])).map(([name, list]) => {
    const link = told.has(name) ? make("a", { href: address(run, "episode", told.get(name)) }, name) : name;
    const cells = [...list].sort((a, b) => a.turn - b.turn).map((row) => make("span", { class: `cell fate-${row.fate}`,
      "data-tip": `turn ${row.turn}: ${row.action || "no action"}\ns(u) ${row.score ?? "–"}\n${state.suite.fates[row.fate]}` }, row.turn));
    return make("tr", {}, make("td", { class: "text" }, link), make("td", { class: "cells" }, cells),
      make("td", {}, chosen(list)), make("td", {}, list[0].of), make("td", { class: "text" }, list[0].task),
      make("td", {}, list[0].version), make("td", { class: "text" }, list[0].outcome));
  });
  return table("By rollout: a box a turn, its number in the episode", ["Rollout", "Turns that were queued",
    "Selected", "Turns", "Task", "Version", "Episode"], lines, "map");
}

function turnTable(rows, counts) {
  const body = (fate) => rows.filter((row) => !fate || row.fate === fate).map((row) => make("tr", {},
    make("td", { class: "text" }, state.suite.fates[row.fate]), make("td", { class: "text" }, row.rollout), make("td", {}, row.turn),
    make("td", {}, row.version), make("td", {}, row.age), make("td", {}, row.score ?? "–"), make("td", {}, row.tokens),
    make("td", { class: "text" }, row.action), make("td", { class: "text" }, row.outcome)));
  const list = table("Turn by turn", ["What became of it at this update", "Rollout", "Turn", "Version", "Age",
    "s(u) (nats)", "Valid tokens", "Action", "Episode"], body(""), "turns");
  const pick = make("select", { onchange: (event) => list.querySelector("tbody").replaceChildren(...body(event.target.value)) },
    make("option", { value: "" }, `all (${rows.length})`), Object.entries(state.suite.fates).filter(([fate]) => counts[fate])
      .map(([fate, words]) => make("option", { value: fate }, `${words} (${counts[fate]})`)));
  return make("details", {}, make("summary", {}, "Turn by turn: disagreement, age, action"),
    make("p", {}, make("label", {}, "Show ", pick)), list);
}

function table(caption, heads, lines, name) {
  const made = make("table", { "data-name": name }, make("caption", {}, caption), make("thead", {},
    make("tr", {}, heads.map((head, i) => make("th", { scope: "col", class: lines[0]?.cells[i].className }, head)))), make("tbody", {}, lines));
  sortable(made);
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, made);
}
