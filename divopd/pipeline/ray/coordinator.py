"""The coordinator: hands out work, and alone touches pool, rule and log.

The learner's death ends the epoch: the run goes back to its last resume point, and whatever still comes from before is
dropped. Any other worker's death costs what it was doing (loop.py).
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.evaluate import checkpoint_version
from divopd.pipeline.course import Task
from divopd.pipeline.ray.fleet import Seat, lanes
from divopd.pipeline.ray.loop import Loop
from divopd.pipeline.ray.weights import is_direct, unpack
from divopd.rollouts import Direction, TeacherTurns
from divopd.types import Rollout, RolloutId

if TYPE_CHECKING:
    from divopd.pipeline.ray.trainer import RayTrainer
    from divopd.pipeline.ray.workers import Played, Probe
    from divopd.policies.parity import Probes

log = logging.getLogger("divopd")
SCORED_AT_ONCE = 16  # rollouts a scorer is given together


class Coordinator(Loop):
    """Drives one run from where its course is to its end."""

    def __init__(self, host: RayTrainer) -> None:
        super().__init__(host)
        self.weights: Any = None  # a reference to those published last, where they go by the store
        self.publishing = False  # then no step begins: what it would keep as the weights of now may be the next ones
        self.probe: Probe | None = None  # what the learner has scored under them
        self.reached = 0  # the version at which a learner died: from there on it is known to live
        self.scoring: deque[Rollout] = deque()
        self.early: list[Rollout] = []  # played with weights of whose publication we have not heard yet
        self.in_flight: set[RolloutId] = set()  # played or scored now
        self.checkpoints: deque[Path] = deque()  # to be evaluated
        self.writer = ThreadPoolExecutor(1)
        self.writing: list[Future[Path]] = []

    def run(self, progress: Callable[[int], None]) -> None:
        """To the last version, and its evaluation; `progress` is called after each version."""
        self.progress = progress
        for kind in ("explorer", "scorer", "evaluator"):
            for seat in self.fleet.of(kind):
                self._seat(seat)
        self._start_learner()
        self._find_checkpoints()
        while not all(map(self.fleet.ready, ("explorer", "scorer", "learner"))):
            self._wait()
        self._start_clock()
        while not (self.course.finished and self._evaluated_all()):
            self._hand_out()
            self._wait()
            self._written()
        self.writer.shutdown()

    # what workers do -------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        with self.host.watch("clock"):
            self._tick()
            if self.fleet.ready("learner") and not self.course.finished:
                self._learn()
                self._score()
                if not self.publishing:
                    self._explore()
            for seat in self.fleet.ready("evaluator"):
                if self.checkpoints and not seat.jobs:
                    path = self.checkpoints[0]
                    self._call(seat, seat.actor.evaluate.remote(str(path)), self._evaluated)

    def _explore(self) -> None:
        """Deal out to idle explorers what is to be played, to each step its part of them."""
        idle = [seat for seat in self.fleet.ready("explorer") if not seat.jobs]
        teachers = self.fleet.ready("scorer") if isinstance(self.course.policy, TeacherTurns) else []
        if isinstance(self.course.policy, TeacherTurns) and not teachers:
            return
        while idle:
            free = max(1, self.course.free)
            if (work := self.course.next_tasks(self._save, len(self.in_flight))) is None:
                return
            direction, tasks = work
            part = min(self.fleet.explorers_a_step, math.ceil(len(idle) / free))
            now, idle = idle[:part], idle[part:]
            for i, seat in enumerate(now[: len(tasks)]):
                self._play(seat, tasks[i :: len(now)], direction, teachers)

    def _play(self, seat: Seat, tasks: Sequence[Task], direction: Direction, teachers: Sequence[Seat]) -> None:
        count, stamp = min(lanes(self.config), len(tasks)), (self.epoch, self.course.version)
        for i in range(count):
            mine = tasks[i::count]
            names = [name for name, _, _ in mine]
            self.in_flight.update(names)
            teacher = teachers[(seat.index + i) % len(teachers)] if teachers else None
            helper = (teacher.index, teacher.life, teacher.actor) if teacher else None
            source = [self.fleet.source(seat, self.weights, self.epoch)]
            reference = seat.actor.play.remote(mine, (i, count), stamp, source, direction, helper, self.probe)
            self._call(seat, reference, partial(self._played, seat), partial(self._requeue, names))

    def _requeue(self, names: Sequence[RolloutId]) -> None:
        self.in_flight.difference_update(names)
        self.course.redo(names)

    def _played(self, seat: Seat, result: Played) -> None:
        if result.gap is not None and not self.course.finished:
            self.host.log.add("parity", [self.host.parity.row(result.gap, result.version)])
        if result.taken is not None:
            self.course.taken[result.taken.road] += 1
            self.course.taken["seconds"] += result.taken.seconds
            if result.taken.trouble:
                log.warning("explorer %d gets weights by the store now: %s", seat.index, result.taken.trouble)
        self.host.parity.note(result.rollouts)
        self.course.totals["teacher_generation_seconds"] += result.seconds.get("teacher_generation", 0.0)
        self._charge(result.seconds)
        (self.early if result.version > self.course.version else self.scoring).extend(result.rollouts)

    def _score(self) -> None:
        idle = [seat for seat in self.fleet.ready("scorer") if not seat.jobs]
        for left, seat in zip(range(len(idle), 0, -1), idle, strict=True):
            share = min(SCORED_AT_ONCE, -(-len(self.scoring) // left))
            if batch := [self.scoring.popleft() for _ in range(share)]:
                back = partial(self.scoring.extendleft, reversed(batch))
                self._call(seat, seat.actor.score.remote(batch), self._scored, back)

    def _scored(self, result: tuple[list[Rollout], int, dict[str, float]]) -> None:
        """What is scored arrives, or is held for its step; the learner starts as soon as it may, as on the virtual
        clock."""
        rollouts, tokens, seconds = result
        self._charge(seconds)
        self.course.totals["teacher_tokens"] += tokens
        over = self.course.finished  # what comes later than the last update is no part of the log
        rollouts = [rollout for rollout in rollouts if not over and self.course.awaits(rollout)]
        if rollouts:
            self.host.transcripts.note(rollouts, rollouts[0].turns[0].version)
        for rollout in rollouts:
            self._tick()
            self.in_flight.discard(rollout.id)
            self.course.arrive(rollout)
            self._learn()

    def _charge(self, seconds: dict[str, float]) -> None:
        for stage, spent in seconds.items():
            self.host.watch.seconds[stage] += spent

    # learner ---------------------------------------------------------------------------------------------------------

    def _start_learner(self) -> None:
        self.weights, self.probe = None, None

        def loaded(pids: list[int]) -> None:
            for seat, pid in zip(self.fleet.of("learner"), pids, strict=True):
                seat.pid = pid
            self._publish(there)

        def there() -> None:
            for seat in self.fleet.of("learner"):
                seat.ready = True
            if self.course.version == 0 and self.course.steps == 0:
                self.course._evaluate_updates(self._save)

        self._all(self.fleet.start_learner(self.host.learner_folder), loaded)

    def _publish(self, then: Callable[[], None]) -> None:
        """Have all ranks give their new weights away, and then go on."""
        ranks, self.publishing = self.fleet.of("learner"), True

        def publish(_: Any = None) -> None:
            calls = [seat.actor.publish.options(num_returns=2).remote() for seat in ranks]

            def given(_: Any) -> None:
                self.weights, self.publishing = calls[0][1], False
                then()

            self._all(zip(ranks, (done for done, _ in calls), strict=True), given)

        if is_direct(self.config):  # no rank waits in a collective call while rank 0 waits for explorers
            self._all([(ranks[0], ranks[0].actor.quiet.remote())], publish)
        else:
            publish()

    def _learn(self) -> None:
        ranks = self.fleet.ready("learner")
        if len(ranks) < len(self.fleet.of("learner")) or (chosen := self.course._choose()) is None:
            return
        turns, weights, row = chosen
        batch = self.ray.put(turns)  # one object: turns keep the contexts that they share
        probes = self.host.parity.probes if self.host.parity.probes[0] else None

        def done(answers: list[Any]) -> None:
            slowest = max(answers, key=lambda each: each[1])
            self._publish(lambda: self._learned(row, slowest, probes))

        self._all(((seat, seat.actor.update.remote(batch, row["update"], weights, probes)) for seat in ranks), done)

    def _learned(self, row: dict[str, Any], slowest: tuple[Any, ...], probes: Probes | None) -> None:
        stats, seconds, scored = slowest
        course, now = self.course, self.course.now
        if course.version >= self.reached:
            for seat in self.fleet.of("learner"):
                seat.deaths = 0
        row |= {key: stats[key] for key in ("loss", "objective", "drift", "grad_norm", "computed_tokens")}
        row |= {"time_end": now, "learner_seconds": seconds}
        course.totals["busy"] += seconds
        course.totals["explorer_seconds"] = self._busy("explorer")
        course.totals["teacher_seconds"] = self._busy("scorer")
        self.host.watch.seconds["learner"] += seconds
        self.host.parity.drift(stats["drift"], course.version)
        self.probe = None if probes is None else (probes, scored)
        course._published(row)
        self.scoring.extend(self.early)
        self.early.clear()
        self.host.log.add("updates", [row])
        course._evaluate_updates(self._save)
        if not course.finished:
            if course.version % self.config.pipeline.save_every == 0:
                self._snapshot()
            self._learn()
        self.progress(course.version)

    def _busy(self, kind: str) -> float:
        """Seconds that this kind's workers have spent on calls so far."""
        now = self.course.now
        return self.course.busy[kind] + sum(now - seat.since for seat in self.fleet.ready(kind) if seat.jobs)

    # checkpoints and resume points -----------------------------------------------------------------------------------

    def _save(self, version: int, explorer_step: int, when: float) -> None:
        """Write the published weights beside the loop, which goes on."""
        reference = self.fleet.whole(self.weights, version)

        def write() -> Path:
            return self.host.write(unpack(self.ray.get(reference)), version, explorer_step, when)

        self.writing.append(self.writer.submit(write))

    def _written(self) -> None:
        """Checkpoints that are on the disk by now wait for their evaluation."""
        while self.writing and self.writing[0].done():
            try:
                path = self.writing.pop(0).result()
            except self.ray.exceptions.RayError as error:  # the weights are gone with the node that held them
                self._dead(self.fleet.of("learner")[0], error, [])
                return
            version = checkpoint_version(path)
            known = {*self.host.evaluated(), *map(checkpoint_version, self.checkpoints)}
            if self.fleet.of("evaluator") and version not in known:
                self.checkpoints.append(path)

    def _find_checkpoints(self) -> None:
        """What waits for its evaluation, from what lies on the disk."""
        if self.fleet.of("evaluator"):
            self.checkpoints = deque(self.host.unevaluated())

    def _evaluated(self, result: tuple[list[dict[str, Any]], float]) -> None:
        rows, seconds = result
        self.host.watch.seconds["evaluation"] += seconds
        self.host.keep_episodes(rows)
        self.checkpoints.popleft()

    def _evaluated_all(self) -> bool:
        return not self.writing and not self.checkpoints

    def _snapshot(self) -> None:
        """A resume point. The course is kept as it is now; the ranks save before their next update."""
        futures.wait(self.writing)
        state, folder = self.host.begin_snapshot()
        saves = [(seat, seat.actor.save.remote(str(folder))) for seat in self.fleet.of("learner")]
        self._all(saves, lambda _: self.host.end_snapshot(state))

    def _rewind(self) -> None:
        """The learner is gone: back to the last resume point, with a new one."""
        self.fleet.end_learner()
        futures.wait(self.writing)
        self.writing.clear()
        self.epoch += 1
        self.reached = max(self.reached, self.course.version + 1)
        self.jobs = {ref: job for ref, job in self.jobs.items() if job.seat.kind != "learner"}
        self.scoring.clear()
        self.early.clear()
        self.in_flight.clear()
        kept = self.course.replaced, self.course.taken
        self.host.rewind()
        self.course.replaced, self.course.taken = kept
        self._start_clock()
        for other in self.fleet.seats:
            other.since = self.course.now
        self._start_learner()
        self._find_checkpoints()
