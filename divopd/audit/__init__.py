"""Gradient audit: how well each rule's batch stands for the pool that it was drawn from (docs/audit.md)."""
