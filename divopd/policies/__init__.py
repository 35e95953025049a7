"""Policies: what samples responses and scores them. `base` is the interface, `hf` the transformers back end."""
