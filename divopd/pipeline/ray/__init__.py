"""Explorers, scorers, learner and evaluator as Ray actors on real clocks (docs/ray.md). Imported where it is asked for.

`trainer` and `coordinator` decide, `fleet` places workers and replaces lost ones, `workers` do the work, `environments`
play games in processes of their own, `weights` travel.
"""
