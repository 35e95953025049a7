"""DivOPD: a reproducible suite for asynchronous on-policy distillation of multi-turn agents (arXiv 2609.34838)."""

__version__ = "0.1.0"
