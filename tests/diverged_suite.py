"""A suite of one whole run and three that diverge, from real models: at update 3 or so, at update 1 and at update 0."""

from __future__ import annotations

from pathlib import Path

import yaml

from divopd.provenance import ROOT

SETTING = "alfworld-0.5m"
# float32 ends at 3.4e38: the last one's first step is beyond it
DIVERGING = {
    "divopd": {"learning_rate": 1e3},
    "divopd_base": {"learning_rate": 1e30},
    "top_b": {"learning_rate": 1e30, "weight_decay": 3.402e8},
}


def write_suite(folder: Path, games: Path, methods: tuple[str, ...] = ("vanilla", *DIVERGING)) -> Path:
    """Suite file, setting and panel in `folder`; the suite's file."""
    panel = folder / "panel.txt"
    panel.write_text("gen/eval/0\ngen/eval/1\ngen/eval/2\n")
    models = ROOT / "models" / "alfworld"
    setting = {
        "student": {"path": str(models / "student-0.5m")},
        "teacher": {"path": str(models / "teacher")},
        "env": {"name": "alfworld", "train_tasks": "gen/train/0:4", "eval_panel": str(panel), "max_turns": 6,
                "cache_dir": str(games)},
        "prompt": {"max_prompt_tokens": 48, "max_response_tokens": 3},
    }  # fmt: skip
    suite = {
        "name": "diverging",
        "settings": [SETTING],
        "methods": {name: {"config": {"train": DIVERGING.get(name, {})}} for name in methods},
        "common": {
            "train": {"updates": 6, "batch_rows": 8, "learning_rate": 3e-4},
            "pipeline": {"tasks_per_step": 4, "load": 2.0, "save_every": 2},
            "evaluation": {"every_updates": 3, "episodes": 3, "batch": 3},
        },
    }
    (folder / "settings").mkdir(exist_ok=True)
    (folder / "settings" / f"{SETTING}.yaml").write_text(yaml.safe_dump(setting))
    (folder / "diverging.yaml").write_text(yaml.safe_dump(suite, sort_keys=False))
    return folder / "diverging.yaml"
