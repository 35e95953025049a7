"""What `divopd replay` does: rules over streams, one row each, tables for people and CSVs for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from divopd.files import atomic_write
from divopd.replay.compare import BUFFER_UPDATES, Variant, comparison
from divopd.replay.engine import Outcome, Replay, ReplayError
from divopd.replay.recorded import Recorded, batches_match
from divopd.selection import Rule, load_rule
from divopd.streams import StreamSpec, Synthetic
from divopd.strict_yaml import YamlError, parse_yaml

# column of replay.csv -> heading of the printed table, and digits
SHOWN = {
    "updates": ("updates", 0), "never_selected_share": ("never selected", 3), "selected_gini": ("Gini", 2),
    "effective_rollouts": ("effective rollouts", 1), "top_rollout_token_share": ("top token share", 3),
    "turns_per_rollout": ("turns / rollout", 1), "dead_rows": ("dead rows", 0), "mean_age": ("mean age", 2),
    "stale_rows": ("stale rows", 0), "teacher_tokens_per_trained_token": ("teacher / trained tokens", 2),
    "kl_per_token": ("KL / token", 3), "load": ("load", 2),
}  # fmt: skip


@dataclass(frozen=True)
class RuleChoice:
    """A rule as the command line names it: `divopd`, or `divopd:cap=3` with parameters."""

    label: str
    name: str
    params: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> RuleChoice:
        """Raises ReplayError where what follows the colon is not `key=value,key=value`."""
        name, _, rest = text.partition(":")
        params: dict[str, Any] = {}
        for part in filter(None, rest.split(",")):
            key, sign, value = part.partition("=")
            if not sign:
                raise ReplayError(f"--rule {text}: {part!r} is not key=value, as in divopd:cap=3")
            if key.strip() in params:
                raise ReplayError(f"--rule {text}: {key.strip()!r} is there twice")
            try:
                params[key.strip()] = parse_yaml(value)
            except YamlError as error:
                raise ReplayError(f"--rule {text}: {key.strip()}: {error}") from error
        return cls(text, name, params)

    def build(self, defaults: Mapping[str, Any]) -> Rule:
        """The rule; parameters that it has and the text does not name come from `defaults`. Raises RuleError."""
        has = type(load_rule(self.name)).model_fields
        return load_rule(self.name, {**{key: v for key, v in defaults.items() if key in has}, **self.params})


def replay_stream(spec: StreamSpec, rule: RuleChoice, seed: int, updates: int | None = None) -> Outcome:
    """One rule over a synthetic stream."""
    defaults = {} if spec.cap is None else {"cap": spec.cap}
    return Replay(Synthetic(spec, seed), rule.build(defaults), updates or spec.updates, rule.label).run()


def replay_run(source: Recorded, rule: RuleChoice, updates: int | None = None) -> Outcome:
    """One rule over a recorded run, with the run's own parameters where the rule has them."""
    own = source.config.method.params
    return Replay(source, rule.build(own), updates or len(source.updates), rule.label).run()


class Report:
    """Collects outcomes, then writes replay.csv, replay_depth.csv, comparison.csv and replay.md into a folder."""

    def __init__(self, rules: Sequence[RuleChoice], updates: int | None) -> None:
        self.rules, self.updates = rules, updates
        self.rows: list[dict[str, Any]] = []
        self.depths: list[pd.DataFrame] = []
        self.compared: list[pd.DataFrame] = []
        self.notes: list[str] = []

    def run(self, run_dir: Path) -> None:
        source = Recorded(run_dir)
        own = source.config.method
        for rule in self.rules:
            outcome = replay_run(source, rule, self.updates)
            self._keep(outcome)
            wanted = self.updates or len(source.updates)
            if len(outcome.updates) < wanted:
                self.notes.append(f"{source.name}, {rule.label}: arrivals ended after {len(outcome.updates)} updates")
            if rule.name == own.rule and not rule.params:
                same, of = batches_match(source, outcome), min(len(outcome.updates), len(source.updates))
                self.notes.append(f"{source.name}: its own rule gives {same} of its {of} batches again")

    def stream(self, spec: StreamSpec, seeds: Iterable[int]) -> None:
        seeds = list(seeds)
        summaries: dict[str, dict[str, float]] = {}
        for rule in self.rules:
            rows = []
            for seed in seeds:
                outcome = replay_stream(spec, rule, seed, self.updates)
                early = {f"{name}_{BUFFER_UPDATES}": value for name, value in outcome.use(BUFFER_UPDATES).items()}
                rows.append(self._keep(outcome) | early)
            summaries[rule.label] = _mean(rows)
        depths = {rule.label: self._depths_of(spec.name, rule.label) for rule in self.rules}

        def variant(what: Variant) -> dict[str, float]:
            rule = RuleChoice(what.rule, what.rule, what.params)
            changed, length = what.spec(spec), what.updates or self.updates
            return _mean([replay_stream(changed, rule, seed, length).summary() for seed in seeds])

        self.compared.append(comparison(spec, summaries, depths, variant))

    def _keep(self, outcome: Outcome) -> dict[str, Any]:
        row = outcome.summary()
        self.rows.append(row)
        self.depths.append(outcome.depths())
        return row

    def _depths_of(self, stream: str, rule: str) -> pd.DataFrame:
        table = pd.concat(self.depths)
        return table[(table["stream"] == stream) & (table["rule"] == rule)]

    def write(self, out: Path) -> str:
        """All files; the text of replay.md. Raises RunLogError where the folder cannot be written."""
        out.mkdir(parents=True, exist_ok=True)
        table = pd.DataFrame(self.rows)
        tables = {"replay": table, "replay_depth": pd.concat(self.depths, ignore_index=True)}
        compared = pd.concat(self.compared, ignore_index=True) if self.compared else pd.DataFrame()
        if len(compared):
            tables["comparison"] = compared
        for name, content in tables.items():
            atomic_write(out / f"{name}.csv", content.to_csv(index=False, float_format="%.10g").encode())
        parts = [rows_table(table), *[f"- {note}" for note in self.notes]]
        if len(compared):
            parts += ["", "## Beside the paper", "", comparison_summary(compared), "", comparison_table(compared)]
        text = "\n".join(["# Replay", "", *parts, ""])
        atomic_write(out / "replay.md", text.encode())
        return text


def _mean(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    numbers = pd.DataFrame(rows).select_dtypes("number")
    return {str(name): float(value) for name, value in numbers.mean().items()}


def _markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in body)])


def rows_table(table: pd.DataFrame) -> str:
    """replay.csv as Markdown, the columns of SHOWN; means over seeds."""
    mean = table.groupby(["stream", "rule"], sort=False)[list(SHOWN)].mean().reset_index()
    body = []
    for row in mean.to_dict("records"):
        body.append([row["stream"], row["rule"], *(f"{row[name]:.{digits}f}" for name, (_, digits) in SHOWN.items())])
    return _markdown(["stream", "rule", *(heading for heading, _ in SHOWN.values())], body)


def comparison_table(compared: pd.DataFrame) -> str:
    """comparison.csv as Markdown."""
    body = []
    for row in compared.to_dict("records"):
        rule = f"{row['rule']} {row['variant']}".strip()
        numbers = [_number(row[name]) for name in ("paper", "replay", "difference", "tolerance")]
        body.append([row["stream"], row["table"], rule, row["quantity"], row["kind"], *numbers, row["verdict"]])
    head = ["stream", "paper's table", "rule", "quantity", "", "paper", "replay", "difference", "tolerance", ""]
    return _markdown(head, body)


def comparison_summary(compared: pd.DataFrame) -> str:
    """Hits over checks, by stream, table and kind."""
    hits = compared.assign(hit=compared["verdict"] == "hit").groupby(["stream", "kind", "table"], sort=False)["hit"]
    body = [[*names, f"{int(n)} of {of}"] for names, (n, of) in hits.agg(["sum", "size"]).iterrows()]
    return _markdown(["stream", "", "paper's table", "within tolerance"], body)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
