"""Which queued turns train: all that a rule's author needs, from one place.

A rule sees read-only columns and returns row indices. It knows no model, no environment, no evaluation data and no
clock but age. docs/rules.md says how to write one. Source of gate, coverage and focus: Algorithm 1 of DivOPD
(arXiv 2609.34838, section 3).
"""

from __future__ import annotations

from divopd.candidates import Candidates, dense_rank, gate
from divopd.ordering import (
    arrival_order,
    best_first,
    by_rollout,
    coverage,
    draws,
    focus_order,
    per_token,
    place_in_run,
    rollout_sum,
    row_tokens,
    sum_in_run,
    uniform_order,
    unit_ranks,
)
from divopd.rules_base import Choice, Rule, RuleError, Selection, apply_rule, checked_select, first_state
from divopd.rules_registry import available_rules, load_rule, rule_class, rule_files, rules_dir, shipped_rules

__all__ = [
    "Candidates",
    "Choice",
    "Rule",
    "RuleError",
    "Selection",
    "apply_rule",
    "arrival_order",
    "available_rules",
    "best_first",
    "by_rollout",
    "checked_select",
    "coverage",
    "dense_rank",
    "draws",
    "first_state",
    "focus_order",
    "gate",
    "load_rule",
    "per_token",
    "place_in_run",
    "rollout_sum",
    "row_tokens",
    "rule_class",
    "rule_files",
    "rules_dir",
    "shipped_rules",
    "sum_in_run",
    "uniform_order",
    "unit_ranks",
]
