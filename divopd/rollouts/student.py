"""The student plays every turn, to the environment's limit."""

from __future__ import annotations

from divopd.rollouts._base import RolloutPolicy


class Student(RolloutPolicy):
    """Plain on-policy rollouts: the default, and what every method of arXiv 2609.34838 without +R does."""
