// Episodes in words: every response token shaded by how much surer of it the student was than its teacher.
const FULL = 4; // nats at which the shade is full
const OTHERS = { teacher: true, expert: true }; // who acts besides the student

function shade(difference) {
  const share = Math.min(1, Math.abs(difference) / FULL) * 0.6;
  return `rgba(${difference > 0 ? "213, 94, 0" : "0, 114, 178"}, ${share.toFixed(3)})`;
}

function scale() {
  const steps = [-FULL, -FULL / 2, 0, FULL / 2, FULL];
  return make("p", { class: "note" }, "Shade: student − teacher log-probability, in nats. Blue: the teacher is surer of the token; orange: the student is. ",
    make("span", { class: "scale", "data-scale": true }, steps.map((step) => {
      const box = make("span", {}, `${Math.abs(step) === FULL ? (step < 0 ? "≤ " : "≥ ") : ""}${step > 0 ? "+" : ""}${step}`.replace("-", "−"));
      box.style.backgroundColor = shade(step);
      return box;
    })));
}

function signed(value) { return `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toFixed(4)}`; }

function token(turn, i) {
  const student = turn.student ? turn.student[i] : null, teacher = turn.teacher ? turn.teacher[i] : null;
  const both = student !== null && teacher !== null;
  const words = both ? `student ${signed(student)}\nteacher ${signed(teacher)}\ndifference ${signed(student - teacher)}`
    : turn.actor === "expert" ? "the expert's, not scored" : teacher !== null ? `teacher ${signed(teacher)} (its own turn)` : student !== null ? `student ${signed(student)}` : "not scored";
  const note = both && !turn.valid[i] ? `${words}\nmay not train` : words;
  const made = make("span", { class: both ? "token" : "token unscored", tabindex: 0, "data-tip": note,
    "aria-label": `${turn.tokens[i]}: ${note.replaceAll("\n", ", ")}` }, turn.tokens[i]);
  if (both) {
    made.dataset.difference = String(student - teacher);
    made.style.backgroundColor = shade(student - teacher);
  }
  return made;
}

function fateOf(turn) {
  if (OTHERS[turn.actor]) return `the ${turn.actor}'s, never trains`;
  if (turn.selected_at !== null && turn.selected_at >= 0) return `selected at update ${turn.selected_at}`;
  if (turn.dropped) return `dropped at update ${turn.dropped_at}: ${KNOWN[turn.dropped] || turn.dropped.replaceAll("_", " ")}`;
  return "fate not known";
}

function turnOf(turn) {
  const total = turn.student && turn.teacher
    ? turn.valid.reduce((sum, valid, i) => sum + (valid ? turn.student[i] - turn.teacher[i] : 0), 0) : null;
  return make("li", { class: `turn ${turn.actor}`, "data-turn": turn.turn },
    make("h4", {}, `Turn ${turn.turn} `, make("span", {}, [OTHERS[turn.actor] ? `by the ${turn.actor}` : null,
      total === null ? null : `s(u) = ${signed(total)}`, fateOf(turn)].filter((part) => part).join(" · "))),
    turn.prompt ? make("div", { class: "prompt" }, turn.prompt) : null,
    make("div", { class: "tokens" }, turn.tokens.length ? turn.tokens.map((_, i) => token(turn, i)) : "no response: the prompt is past its limit"));
}

function drawEpisode(view, run, log, wanted) {
  const order = log.episodes.map((_, i) => i);
  const i = order.includes(Number(wanted)) && wanted !== undefined ? Number(wanted) : 0, episode = log.episodes[i];
  const name = (e) => `step ${e.id[0]}, version ${e.version ?? "?"}: ${e.task ?? e.id.join(".")} (${e.success ? "success" : "failure"})`;
  const shown = episode.turns.length, all = episode.rollout_turns ?? shown;
  const list = make("ol", { "data-episode": i }, episode.turns.map(turnOf));
  list.style.cssText = "list-style: none; padding: 0";
  view.querySelector("#told").replaceChildren(
    make("p", { class: "note" }, "A run keeps the first two rollouts of six explorer steps in words, evenly spread over its " +
      `learner versions; turns that never reached the queue are missing. ${log.episodes.length} episodes are here.`),
    chooser("Episode ", order, (j) => name(log.episodes[j]), i, (j) => { location.hash = address(run, "episode", j); }),
    make("p", {}, `${episode.task ?? "Task"}: ${episode.success ? "success" : "failure"}, reward ${episode.reward}; ` +
      `${shown} of ${all} turns. Point at a token, or go to it with the Tab key, for its numbers.`),
    scale(), list,
  );
}

function watchTips() {
  const words = (event) => event.target.closest && event.target.closest("[data-tip]");
  const place = (event) => {
    const node = words(event);
    if (!node) return;
    const box = node.getBoundingClientRect();
    tip.show(node.dataset.tip, box.left, box.bottom - 12);
  };
  document.addEventListener("pointerover", place);
  document.addEventListener("focusin", place);
  for (const name of ["pointerout", "focusout"]) document.addEventListener(name, (event) => words(event) && tip.hide());
  document.addEventListener("keydown", (event) => event.key === "Escape" && tip.hide());
}
watchTips();
