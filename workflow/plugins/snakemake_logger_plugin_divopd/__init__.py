"""Snakemake's events as lines of JSON on the file descriptor DIVOPD_EVENTS, for `divopd run`, which shows them."""

from __future__ import annotations

import json
import os
from logging import WARNING, LogRecord
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

FIELDS = {
    LogEvent.RUN_INFO: ("stats",),
    LogEvent.JOB_INFO: ("jobid", "rule_name", "wildcards", "log", "shellcmd"),
    LogEvent.JOB_FINISHED: ("job_id",),
    LogEvent.JOB_ERROR: ("jobid",),
    LogEvent.ERROR: ("exception",),
}


class LogHandler(LogHandlerBase):
    def __post_init__(self) -> None:
        self._events: int | None = int(os.environ["DIVOPD_EVENTS"])

    def emit(self, record: LogRecord) -> None:
        event = getattr(record, "event", None)
        if event in FIELDS:
            said: dict[str, Any] = {name: getattr(record, name, None) for name in FIELDS[event]}
        elif event is None and record.levelno >= WARNING:
            event, said = "warning", {}
        else:
            return
        said |= {"event": str(event), "dryrun": self.common_settings.dryrun}
        if record.levelno >= WARNING:
            said["message"] = record.getMessage()
        try:
            if self._events is not None:
                os.write(self._events, json.dumps(said, default=str).encode() + b"\n")
        except OSError:  # nobody reads any more; the jobs go on
            self._events = None

    @property
    def writes_to_stream(self) -> bool:
        """True keeps Snakemake's own output away."""
        return not os.environ.get("DIVOPD_VERBOSE")

    @property
    def writes_to_file(self) -> bool:
        return False

    @property
    def has_filter(self) -> bool:
        return True

    @property
    def has_formatter(self) -> bool:
        return True

    @property
    def needs_rulegraph(self) -> bool:
        return False
