"""What the nodes of a cluster must have in common: the coordinator's folder, its models, and the run's own folder."""

from __future__ import annotations

import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from divopd.config import RunConfig
from divopd.doctor import SetupError
from divopd.templates import template_path

PATIENCE = 60.0  # seconds in which what one node writes is seen by all: NFS keeps what it knew of a folder so long


@dataclass(frozen=True, slots=True)
class Home:
    """What a worker looks for on its node before it loads anything."""

    folder: str  # where the paths of the configuration begin
    reads: tuple[str, ...]  # those of them that are there for the coordinator
    mark: str  # a file that the coordinator has just written into the run's folder

    @classmethod
    def here(cls, config: RunConfig, run_dir: Path) -> Home:
        """Of this process. Leaves the mark in `resume/`, with which it goes."""
        named = (config.student.path, config.teacher.path, config.env.source, config.env.eval_panel)
        found = [Path(path) for path in named if Path(path).exists()]
        if (template := template_path(config.prompt)) is not None:
            found.append(template)
        mark = run_dir.absolute() / "resume" / f"mark-{secrets.token_hex(4)}"
        mark.parent.mkdir(parents=True, exist_ok=True)
        for old in mark.parent.glob("mark-*"):
            old.unlink()
        mark.touch()
        return cls(os.getcwd(), tuple(map(str, found)), str(mark))

    def enter(self, shares: bool) -> None:
        """Go there. `shares`: and find the run's folder. Raises `SetupError` where this node lacks something."""
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise SetupError(_unseen(self.folder, "start divopd in a folder that all nodes have")) from error
        for path in self.reads:
            if not Path(path).exists():
                raise SetupError(_unseen(path, "models, panels and games must lie at the same paths on every node"))
        mark, begin = Path(self.mark), time.monotonic()
        while shares and not (mark.exists() and os.access(mark.parent, os.W_OK)):
            if time.monotonic() - begin > PATIENCE:
                mend = "learner and evaluator read and write it, so --out must be on a file system that all nodes share"
                raise SetupError(_unseen(str(mark.parent.parent), mend))
            time.sleep(0.5)


def _unseen(path: str, mend: str) -> str:
    return f"node {socket.gethostname()} does not see {path} as the coordinator's does: {mend}"
