"""`divopd plan`: shapes against published and real models, formulae against numbers worked out by hand."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from divopd.blank import byte_tokenizer, model_config
from divopd.cli import main
from divopd.config import PolicyConfig
from divopd.plan import rollouts, scaling
from divopd.plan.costs import GIB, Layout, cost, flow, learner_bytes
from divopd.plan.measured import nearest, seen_runs
from divopd.plan.rates import ModelRates, RatesFile, StageRates, assumed, measured, paper, read_rates
from divopd.plan.report import cell_cost, gpu_table, layout_of_cell
from divopd.plan.rollouts import RolloutStats, stats_of
from divopd.plan.shapes import SHAPES, Shape, read_shape, shape_of
from divopd.streams import StreamSpec
from divopd.suite import SuiteError, find_cell, load_suite
from synthetic import cell, write_run

ROOT = Path(__file__).resolve().parent.parent
SUITE = ROOT / "experiments" / "paper.yaml"
STATS = RolloutStats(turns=10.0, row_tokens=500.0, response=20.0, first=100.0, end=900.0, added=60.0)
RATES = StageRates("hand", episodes=4.0, token_seconds=0.01, turn_seconds=0.3, score=1000.0, train=2000.0,
                   update_seconds=1.0)  # fmt: skip


@pytest.fixture(scope="module")
def cells():
    return load_suite(SUITE)


@pytest.mark.parametrize(
    ("name", "billions"),  # as Qwen reports them
    [("Qwen2.5-1.5B", 1.54), ("Qwen2.5-3B", 3.09), ("Qwen2.5-7B", 7.61), ("Qwen3-1.7B", 1.72), ("Qwen3-4B", 4.02)],
)
def test_sizes_are_the_published_ones(name: str, billions: float):
    assert SHAPES[name].parameters / 1e9 == pytest.approx(billions, rel=0.003)


@pytest.mark.parametrize(
    "shape", [Shape(32, 2, 4, 2, 48, 300, True, 8), Shape(32, 3, 2, 1, 40, 320, False, 24, "qwen3")]
)
def test_sizes_are_those_of_transformers(shape: Shape, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    config = model_config(shape, byte_tokenizer(290))
    model = AutoModelForCausalLM.from_config(config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    config.save_pretrained(tmp_path)
    assert shape_of(PolicyConfig(path=str(tmp_path))) == shape
    assert read_shape(json.loads((tmp_path / "config.json").read_text())) == shape


def test_models_of_the_paper_are_known_and_others_are_said(cells):
    assert {shape_of(p).vocab for c in cells for p in (c.student, c.teacher)} == {151_936, 152_064}
    stranger = cells[0].model_copy(update={"student": PolicyConfig(path="some/model")})
    with pytest.raises(SuiteError, match=r"some/model are not known: put its config.json"):
        gpu_table([stranger], "paper")


def test_rollouts_on_average_are_the_streams():
    """Three turns each, nothing random: prompts of 100, 115 and 130 tokens, responses of 5."""
    spec = StreamSpec.model_validate(
        {
            "name": "plain", "max_turns": 9, "success": {"start": 1.0, "end": 1.0, "updates": 1},
            "success_turns": {"mean": 3.0, "shape": 1.0, "shortest": 3},
            "tokens": {"first_prompt": 100, "observation": 10, "response": 5},
            "scores": {"per_token": 0.1, "sigma": 0.1},
        }
    )  # fmt: skip
    stats = rollouts._stats(spec.model_dump_json(), 0)
    assert stats == RolloutStats(turns=3.0, row_tokens=120.0, response=5.0, first=105.0, end=135.0, added=10.0)
    assert stats.computed(1) == 120.0 and stats.computed(2) == 125.0


def test_the_pace_of_an_update_by_hand():
    """4 rollout GPUs x 4 episodes, 0.5 s a turn: 32 turns/s. Scoring 90 tokens a turn: 2 x 1000 / 90 turns/s."""
    run = cell("alfworld-qwen3-1.7b", "divopd")  # the paper: 3.9 turns of a rollout in a batch
    pace = flow(run, STATS, RATES, Layout(4, 2, 2))
    assert pace.explore == pytest.approx(64 / 32)
    assert pace.teach == pytest.approx(64 * 90 / 2000)
    computed = 64 / 3.9 * (100 + 800 * 3.9 / 4.9)
    assert pace.computed == pytest.approx(computed)
    assert pace.learn == pytest.approx(1 + computed / 4000)
    assert pace.limit == "learner" and pace.seconds == pace.learn
    assert pace.arriving == pytest.approx(2000 / 90 * pace.learn)  # the teacher is slower than the explorers
    assert pace.teacher_busy == pytest.approx(1.0)
    # with more ranks than sequences the surplus idles
    assert flow(run, STATS, RATES, Layout(4, 2, 999)).learn == pytest.approx(1 + computed / (64 / 3.9 * 2000))
    rewritten = run.model_copy(update={"prompt": run.prompt.model_copy(update={"history": "rewrite"})})
    assert flow(rewritten, STATS, RATES, Layout(4, 2, 2)).computed == 64 * 500  # rows that share nothing


def test_the_cost_of_a_cell_by_hand(cells):
    run = find_cell(cells, "webshop-qwen2.5-7b", "divopd", 0)
    student, teacher = SHAPES["Qwen2.5-7B"], SHAPES["Qwen2.5-7B"]
    pace, layout = flow(run, STATS, RATES, layout_of_cell(run)), layout_of_cell(run)
    assert layout == Layout(4, 2, 2) and layout.total == 8
    c = cost(run, student, teacher, STATS, RATES, layout, RATES)
    assert c.train_hours == pytest.approx(150 * pace.seconds * 8 / 3600)
    assert c.trained == 150 * 64 * 500 and c.computed == pytest.approx(150 * pace.computed)
    turns = 150 * pace.arriving
    assert c.generated == pytest.approx(turns * 20) and c.scored == pytest.approx(turns * 90)
    evaluations = 2 + int(turns / 160 / 5)
    assert c.evaluation_hours == pytest.approx(evaluations * 128 * 10 / 8 / 3600)  # 4 episodes, 0.5 s a turn
    P = student.parameters
    assert c.kept_disk_gib == pytest.approx((2 * P + 60 * turns) / GIB)
    assert c.peak_disk_gib == pytest.approx((28 * P + evaluations * 2 * P + 60 * turns) / GIB)
    one, two = (learner_bytes(run, student, STATS, n) for n in (1, 2))
    assert one - two == pytest.approx(8 * P)  # weights, gradients and AdamW: 16 bytes a parameter, cut in two
    every = run.model_copy(update={"train": run.train.model_copy(update={"logit_chunk": None})})
    trains = 16_384 * 200 / 900
    extra = 12 * student.vocab * (trains - 1024)
    assert learner_bytes(every, student, STATS, 2) - two == pytest.approx(extra)


def test_the_papers_rates(cells):
    """DivOPD in ALFWorld 1.7B: 39.5 s a step; 2.77 turns scored for one trained."""
    run = find_cell(cells, "alfworld-qwen3-1.7b", "divopd", 0)
    stats = stats_of(run)
    rates = paper(run, run.setting, stats)
    assert rates.turns(stats.response) * 4 == pytest.approx(2.77 * 64 / 39.5)
    assert cell_cost(run, "paper").train_hours == pytest.approx(250 * 39.5 * 8 / 3600)
    recovery = find_cell(cells, "alfworld-qwen3-1.7b", "divopd_recovery", 0)
    assert cell_cost(recovery, "paper").update_seconds == pytest.approx(39.5)
    assert paper(run, "alfworld-2m", stats) is None


def test_measured_rates_replace_the_assumed(tmp_path: Path):
    student, teacher = SHAPES["Qwen2.5-1.5B"], SHAPES["Qwen2.5-7B"]
    file = RatesFile(
        source="here",
        models={"Qwen2.5-1.5B": ModelRates(decode=3200.0, decode_episodes=64, train=9000.0, sync_seconds=0.7)},
    )
    got = measured(file, student, teacher, STATS, 64)
    assert got.token_seconds == pytest.approx(64 / 3200) and got.train == 9000.0 and got.update_seconds == 0.7
    base = assumed(student, teacher, STATS, 64, file.gpu, "here")
    assert got.score == base.score  # not measured
    larger = measured(file, SHAPES["Qwen2.5-3B"], teacher, STATS, 64)
    assert larger.train == pytest.approx(9000 * student.parameters / SHAPES["Qwen2.5-3B"].parameters)
    path = tmp_path / "rates.yaml"
    path.write_text("source: a\nmodel: {}\n")
    with pytest.raises(SuiteError, match=r"rates.yaml: not a rates file.*model"):
        read_rates(path)
    with pytest.raises(SuiteError, match=r"gpu_check.sh writes such a file"):
        read_rates(tmp_path / "none.yaml")


def test_what_limits_a_cell(cells, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scaling, "UPDATES", 6)
    run = find_cell(cells, "webshop-qwen2.5-3b", "divopd", 0)
    stats = stats_of(run)

    def at(**change: float) -> scaling.Scaled:
        fields = {"episodes": 4.0, "token_seconds": 1e-4, "turn_seconds": 0.1, "score": 1e6, "train": 1e3}
        return scaling.scale(run, stats, StageRates("hand", update_seconds=0.0, **(fields | change)), 8)

    slow_learner = at()
    assert slow_learner.limit == "learner" and slow_learner.learner_busy > 0.9 and slow_learner.load > 2
    slow_explorers = at(turn_seconds=100.0, train=1e6)
    assert slow_explorers.limit == "explorers" and slow_explorers.learner_busy < 0.1
    assert at(score=30.0, train=1e6).limit == "teacher"
    # one step of 16 rollouts outlives many versions of a fast learner: what it brings is too old when it comes
    steps = {n: scaling.steps_in_flight(run, scaling.layout_of(n)) for n in (1, 8, 64)}
    assert steps == {1: 1, 8: 1, 64: 8}
    assert scaling.episodes_a_gpu(run, scaling.layout_of(8)) == 4.0


def test_a_plan_plays_the_cells_own_pipeline(cells, monkeypatch: pytest.MonkeyPatch):
    """The suite's one step of 16 tasks on four engines, which arrives as one and waits for the update under way."""
    run, played = find_cell(cells, "webshop-qwen2.5-3b", "divopd", 0), []
    explorers = run.placement.explorers.count
    assert explorers == 4 and run.pipeline.steps_in_flight == 1 and run.pipeline.tasks_per_step == 16
    monkeypatch.setattr(scaling, "UPDATES", 3)
    real = scaling.Synthetic
    monkeypatch.setattr(scaling, "Synthetic", lambda spec, seed: (played.append(spec.pipeline), real(spec, seed))[1])
    rates = StageRates("hand", 4.0, 1e-4, 0.1, 1e6, 1e3, 0.0)
    tasks = {"tasks_per_step": 8, "runs_per_task": 3}
    other = run.pipeline.model_copy(update={"arrives": "rollout", "sync": "latest", "steps_in_flight": 2} | tasks)
    crowded = run.model_copy(update={"pipeline": other})
    assert scaling.episodes_a_gpu(crowded, scaling.layout_of(8)) == 2 * 24 / 4
    for cell_ in (run, crowded):
        scaling.scale(cell_, stats_of(run), rates, 8)
    assert [(p.tasks_per_step, p.runs_per_task) for p in played] == [(16, 1), (8, 3)]
    assert [(p.steps_in_flight, p.arrives, p.order, p.sync) for p in played] == [
        (1, "step", "ended", "wait"), (2, "rollout", "ended", "latest"),
    ]  # fmt: skip


def test_small_models_cost_what_their_runs_took(tmp_path: Path):
    run = cell("alfworld-0.5m", "vanilla")
    run_dir = write_run(tmp_path, run, updates=60)  # 12 s of learner
    seconds = json.loads((run_dir / "timings.json").read_text()) | {"evaluation": 70.0, "startup": 99.0}
    (run_dir / "timings.json").write_text(json.dumps(seconds))
    [seen] = seen_runs(tmp_path)
    assert seen.update_seconds == pytest.approx(0.2) and seen.episode_seconds == pytest.approx(0.1)  # 7 x 100 episodes
    assert seen.evaluations == 7
    assert nearest(cell("alfworld-0.5m", "divopd"), [seen]) is seen
    assert nearest(cell("alfworld-2m", "vanilla"), [seen]) is None


def test_the_command(tmp_path: Path):
    table = tmp_path / "plan.csv"
    result = CliRunner().invoke(main, ["plan", str(SUITE), "--csv", str(table)])
    assert result.exit_code == 0, result.output
    head, *rows, total = list(csv.reader(table.open()))
    assert len(rows) == 36 and total[0] == "all cells" and total[2] == "108"
    hours = sum(int(row[2]) * float(row[head.index("GPU-h")]) for row in rows)
    assert float(total[head.index("GPU-h")]) == pytest.approx(hours, rel=0.01)
    assert "models to fetch" in result.output
    bad = CliRunner().invoke(main, ["plan", str(SUITE), "--gpus", "8,x"])
    assert bad.exit_code != 0 and "1,8,64" in bad.output
    small = CliRunner().invoke(main, ["plan", str(ROOT / "experiments" / "demo.yaml"), "--results", str(tmp_path)])
    assert small.exit_code == 0 and small.output.count("no run of this setting") == 9


def test_the_paper_suite_is_the_papers(cells):
    assert len(cells) == 6 * 6 * 3
    for run in cells:
        train = run.train
        assert (train.batch_rows, train.pool_factor, train.max_staleness, train.retention) == (64, 4, 2, 8)
        assert (train.learning_rate, train.betas, train.weight_decay, train.grad_clip, train.beta) == (
            1e-6, (0.9, 0.999), 0.01, 1.0, 1.0,
        )  # fmt: skip
        assert (run.prompt.max_prompt_tokens, run.prompt.max_response_tokens, run.prompt.history) == (
            10_240,
            512,
            "chat",
        )
        assert run.prompt.template == run.env.name and run.pipeline.kind == "ray"
        assert {run.student.backend, run.teacher.backend} == {"vllm"}
        assert (run.evaluation.temperature, run.evaluation.every_explorer_steps, run.rollout_temperature) == (
            0.4,
            5,
            1.0,
        )
        assert layout_of_cell(run) == Layout(4, 2, 2)
        assert run.method.rule == "vanilla" or run.method.params.get("cap") in (4, 5)


def test_the_slurm_profile_names_rules_and_keys_that_exist():
    profile = yaml.safe_load((ROOT / "workflow" / "profiles" / "slurm" / "config.yaml").read_text())
    default = yaml.safe_load((ROOT / "workflow" / "profiles" / "default" / "config.yaml").read_text())
    assert default.items() <= profile.items() and profile["executor"] == "slurm" and profile["retries"] > 0
    rules = "".join(path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    assert all(f"rule {name}:" in rules for name in profile["set-resources"])
    assert profile["set-resources"]["train"]["gres"] == "'gpu:8'"


@pytest.mark.slow
def test_the_gpu_check_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its shapes are tiny and its numbers say nothing of a GPU; that it runs and what it writes are the test."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import gpu_check
    from gpu_steps import Size

    out = tmp_path / "rates.yaml"
    steps = ["models", "rollout", "teacher", "learner0"]
    assert gpu_check.measure(Size(tiny=True), steps, tmp_path, out) == 0
    rates = read_rates(out)
    student, teacher = rates.models["tiny-student"], rates.models["tiny-teacher"]
    assert min(student.decode, student.prefill, student.train, teacher.score) > 0
    assert not any(str(rates.checks[f"step_{name}"]).startswith("failed") for name in steps)
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump({"name": "one", "settings": ["webshop-qwen2.5-3b"], "methods": ["vanilla"]}))
    (tmp_path / "settings").symlink_to(ROOT / "experiments" / "settings")
    planned = CliRunner().invoke(main, ["plan", str(suite), "--rates", str(out)])
    assert planned.exit_code == 0 and "gpu_check.sh --tiny" in planned.output
    assert gpu_check.measure(Size(tiny=True), ["rollout"], tmp_path / "none", out) == 1  # no checkpoint there
    assert read_rates(out).checks["step_rollout"].startswith("failed: ")


def test_the_gpu_check_names_its_steps():
    command = ["sh", str(ROOT / "scripts" / "gpu_check.sh"), "--tiny", "--steps", "rollout,dance"]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHON": sys.executable})
    assert run.returncode == 2 and "no step 'dance'; steps: rollout, teacher, learner, cell" in run.stderr
