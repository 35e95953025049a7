"""A cell whose work is done by Ray actors: the same trainer, log and resume points as on the virtual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from divopd import runlog
from divopd.config import RunConfig
from divopd.evaluate import checkpoint_version
from divopd.learner import DivergedError
from divopd.pipeline.course import Course, Task
from divopd.pipeline.ray.coordinator import Coordinator
from divopd.pipeline.ray.fleet import Fleet
from divopd.pipeline.ray.nodes import Home
from divopd.pipeline.ray.steps import RayCourse
from divopd.pipeline.ray.weights import unpack
from divopd.pipeline.virtual import VirtualPipeline
from divopd.policies.parity import Parity
from divopd.rollouts import Direction, TeacherTurns
from divopd.train import Progress, Trainer, write_checkpoint
from divopd.types import Rollout


class RayTrainer(Trainer):
    """Use as a context manager: its workers end with it. Nothing that computes is loaded here."""

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        self.fleet: Any = None
        self.learner_folder: str | None = None  # from which the learner goes on; None: from the student
        try:
            super().__init__(config, run_dir)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.fleet is not None:
            self.fleet.close()

    def _build(self, config: RunConfig) -> None:
        self._prepare(config)
        self.virtual = config.placement.clock == "virtual"
        self.pipeline: Any = self._start()
        self.fleet = Fleet(config)

    def _start(self) -> Course:
        return self._course(VirtualPipeline if self.virtual else RayCourse)

    # the run ---------------------------------------------------------------------------------------------------------

    def run(self, progress: Progress) -> str:
        """Train to the end; the status that was logged, "done" or "diverged"."""
        self.fleet.home = Home.here(self.config, self.run_dir)
        if self.virtual:
            self._set_up()
            return super().run(progress)
        updates = self.config.train.updates

        def published(version: int) -> None:
            progress(version, updates, f"{self.pipeline.now:.0f} s, {self.pipeline.pool.queued} turns queued")

        try:
            Coordinator(self).run(published)
        except DivergedError as error:
            return self._finish("diverged", reason=str(error))
        return self._finish("done")

    def _seconds(self) -> dict[str, Any]:
        if self.virtual:
            return super()._seconds()
        course, placement = self.pipeline, self.config.placement
        spent = {kind: max(1, getattr(placement, f"{kind}s").count) * max(course.now, 1e-9) for kind in course.busy}
        return {
            "seconds": round(course.now, 3),
            "busy": {kind: round(seconds / spent[kind], 4) for kind, seconds in course.busy.items()},
            "weights": course.taken | {"seconds": round(course.taken["seconds"], 3)},
            "replaced": course.replaced,
        }

    # the virtual clock: workers are called one after another, and do what one process would ---------------------------

    def _set_up(self) -> None:
        others = [seat for kind in ("explorer", "scorer") for seat in self.fleet.of(kind)]
        for seat in others:
            self.fleet.fill(seat)
        ready = [self.fleet.start(seat) for seat in others]
        _answers([reference for _, reference in self.fleet.start_learner(self.learner_folder)])
        _answers(ready)
        self._publish()

    def _explore(self, tasks: Sequence[Task], version: int, direction: Direction) -> tuple[list[Rollout], int]:
        import ray

        scorer = self.fleet.of("scorer")[0].actor
        teacher = (0, 0, scorer) if isinstance(direction.policy, TeacherTurns) else None
        part = self.fleet.explorers_a_step
        calls = [
            seat.actor.play.remote(tasks[i::part], (0, 1), (0, version), [self.fleet.source(seat, self._published, 0)],
                                   direction, teacher)
            for i, seat in enumerate(self.fleet.of("explorer")[: min(part, len(tasks))])
        ]  # fmt: skip
        played = _answers(calls)
        together = sorted((rollout for each in played for rollout in each.rollouts), key=lambda rollout: rollout.id)
        rollouts, scored, also = ray.get(scorer.score.remote(together))
        for stage, seconds in [item for each in [*(p.seconds for p in played), also] for item in each.items()]:
            self.watch.seconds[stage] += seconds
        self.transcripts.note(rollouts, version)
        return rollouts, scored

    def _learn(self, turns: Sequence[Any], version: int, weights: np.ndarray | None = None) -> dict[str, float]:
        import ray

        batch = ray.put(turns)
        calls = [seat.actor.update.remote(batch, version, weights) for seat in self.fleet.of("learner")]
        outcome = _answers(calls)  # a tuple each: see Rank.update
        self.watch.seconds["learner"] += max(seconds for _, seconds, _ in outcome)
        self.parity.drift(outcome[0][0]["drift"], version)
        return {key: outcome[0][0][key] for key in ("loss", "objective", "drift", "grad_norm", "computed_tokens")}

    def _publish(self) -> None:
        calls = [seat.actor.publish.options(num_returns=2).remote() for seat in self.fleet.of("learner")]
        _answers([done for done, _ in calls])
        self._published = calls[0][1]

    def _save(self, version: int, explorer_step: int, time: float) -> None:
        import ray

        self.write(unpack(ray.get(self.fleet.whole(self._published, version))), version, explorer_step, time)

    def _weights_state(self) -> dict[str, Any]:
        import ray

        folder = self._learner_folder()
        ray.get([seat.actor.save.remote(str(folder)) for seat in self.fleet.of("learner")])
        return {"learner": folder.name}

    # what the coordinator asks for -----------------------------------------------------------------------------------

    def write(self, weights: Mapping[str, Tensor], version: int, explorer_step: int, time: float) -> Path:
        """Keep a checkpoint."""
        return write_checkpoint(self.run_dir, weights, version, explorer_step, time)

    def evaluated(self) -> set[int]:
        """Versions whose episodes are in the log."""
        return set(self.log.table("evals").column("version").to_pylist())

    def unevaluated(self) -> list[Path]:
        """The first checkpoint of each version that has no episodes yet."""
        firsts: dict[int, Path] = {}
        for path in sorted((self.run_dir / "checkpoints").glob("v*.safetensors")):
            firsts.setdefault(checkpoint_version(path), path)
        done = self.evaluated()
        return [path for version, path in sorted(firsts.items()) if version not in done]

    def keep_episodes(self, rows: list[dict[str, Any]]) -> None:
        """Put a version's episodes on the disk. Checkpoints of earlier versions have served."""
        self.log.add("evals", rows)
        self.log.flush()
        done = self.evaluated()
        for path in (self.run_dir / "checkpoints").glob("v*.safetensors"):
            if checkpoint_version(path) in done - {max(done)}:
                path.unlink()

    def _learner_folder(self) -> Path:
        return self.run_dir.absolute() / "resume" / f"learner-v{self.pipeline.version:05d}"

    def begin_snapshot(self) -> tuple[dict[str, Any], Path]:
        """The course as it is now; where the learner is to save itself."""
        folder = self._learner_folder()
        return self._state() | {"learner": folder.name}, folder

    def end_snapshot(self, state: dict[str, Any]) -> None:
        """The learner has saved itself: from now on this is where a crash goes back to."""
        self._write_resume_point(state)

    def _write_resume_point(self, state: dict[str, Any]) -> None:
        super()._write_resume_point(state)
        folder = self.run_dir.absolute() / "resume"
        self.learner_folder = str(folder / state["learner"])
        for other in folder.glob("learner-v*"):
            if other.name != state["learner"]:
                runlog.remove(other)

    def rewind(self) -> None:
        """Back to the last resume point, or to the start where there is none yet."""
        if (state := self._resume_point()) is not None:
            self._restore(state)
            return
        self.pipeline, self.learner_folder = self._start(), None
        self.parity = Parity(self.config)
        self.transcripts.load_state_dict({"reached": -1, "waiting": {}})
        for path in (self.run_dir / "checkpoints").glob("*"):
            path.unlink()
        self.log.truncate(dict.fromkeys(self.log.counts(), 0))

    def _load_weights_state(self, state: dict[str, Any]) -> None:
        """The learner loads them itself. Evaluations of the versions that are still there stay."""
        self.learner_folder = str(self.run_dir.absolute() / "resume" / state["learner"])
        versions = self.log.table("evals").column("version").to_pylist()
        self.log.truncate({"evals": sum(version <= self.pipeline.version for version in versions)})


def _answers(references: Sequence[Any]) -> list[Any]:
    """What calls have returned. What a worker raised is raised here as what it is."""
    import ray

    try:
        found: list[Any] = ray.get(references)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from None
    return found
