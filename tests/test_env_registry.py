"""Task lists by configuration: what cannot be one is a line that names the key."""

from __future__ import annotations

import pytest

from divopd.config import EnvConfig
from divopd.envs.base import EnvError
from divopd.envs.registry import train_tasks


def test_a_range_runs_to_below_its_end():
    assert train_tasks(EnvConfig(train_tasks="gen/train/3:5")) == ["gen/train/3", "gen/train/4"]


@pytest.mark.parametrize("spec", ["gen/train/0:0", "gen/train/7:3"])
def test_an_empty_range_is_named(spec: str):
    with pytest.raises(EnvError, match=f"env.train_tasks: {spec} is empty"):
        train_tasks(EnvConfig(train_tasks=spec))
