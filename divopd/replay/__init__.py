"""Any selection rule over an arrival stream, recorded or synthetic: what it would train on, without a model."""

from __future__ import annotations

from divopd.replay.engine import Outcome, Replay, ReplayError
from divopd.replay.recorded import Recorded, batches_match
from divopd.replay.source import Arrival, Rows, Source

__all__ = ["Arrival", "Outcome", "Recorded", "Replay", "ReplayError", "Rows", "Source", "batches_match"]
