"""Calls to workers, and what to do when one ends, fails, or its worker is no more.

Every call is a reference with a `Job` beside it. A worker's death is an outcome like any other: what it was doing is
undone, to be handed out again, and a new worker takes its seat.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from divopd.doctor import SetupError
from divopd.pipeline.ray.fleet import Seat
from divopd.pipeline.ray.proxies import TeacherLostError
from divopd.pipeline.ray.steps import RayCourse
from divopd.policies.base import EngineLostError

if TYPE_CHECKING:
    from divopd.pipeline.ray.trainer import RayTrainer

log = logging.getLogger("divopd")
SETUP_LIMIT = 3600.0  # seconds that a worker may take to load, where calls must be shorter


@dataclass(eq=False, slots=True)
class Job:
    """A call under way. `done(result)` is called when it has ended, `undo()` where it was lost, in its epoch."""

    seat: Seat
    epoch: int | None  # None: a setup, which outlives epochs
    done: Callable[[Any], None]
    undo: Callable[[], None]
    begin: float = field(default_factory=time.monotonic)


class Loop:
    """Waits for calls. A subclass hands them out, and knows how to go back when the learner is gone (`_rewind`)."""

    def __init__(self, host: RayTrainer) -> None:
        import ray

        self.ray = ray
        self.host, self.fleet, self.config = host, host.fleet, host.config
        self.jobs: dict[Any, Job] = {}
        self.epoch = 0  # what was called in an earlier one is not listened to
        self._zero: float | None = None  # of the run's clock, which stands until there is somebody to work
        self._homeless: dict[Seat, float] = {}  # whose node is gone, and since when
        self._looked = 0.0  # for such, when last

    @property
    def course(self) -> RayCourse:
        course: RayCourse = self.host.pipeline
        return course

    def _rewind(self) -> None:
        raise NotImplementedError

    def _start_clock(self) -> None:
        self._zero = time.monotonic() - self.course.now

    def _tick(self) -> float:
        if self._zero is not None:
            self.course.now = time.monotonic() - self._zero
        return self.course.now

    def _call(
        self, seat: Seat, reference: Any, done: Callable[[Any], None], undo: Callable[[], None] = lambda: None
    ) -> None:
        if not seat.jobs:
            seat.since = self._tick()
        seat.jobs += 1
        self.jobs[reference] = Job(seat, self.epoch if seat.ready else None, done, undo)

    def _all(self, calls: Iterable[tuple[Seat, Any]], then: Callable[[list[Any]], None]) -> None:
        """Calls to all ranks; `then` with their answers when the last is there."""
        made, answers = list(calls), dict[int, Any]()

        def done(i: int, answer: Any) -> None:
            answers[i] = answer
            if len(answers) == len(made):
                then([answers[i] for i in range(len(made))])

        for i, (seat, reference) in enumerate(made):
            self._call(seat, reference, partial(done, i))

    def _wait(self) -> None:
        """Wait for what ends first, and deal with all that has ended."""
        wait = self.ray.wait
        if not self.jobs:
            time.sleep(0.05)
            return
        wait(list(self.jobs), timeout=0.2)  # and then look at other things, such as files
        ended, _ = wait(list(self.jobs), num_returns=len(self.jobs), timeout=0)
        with self.host.watch("clock"):
            for reference in ended:
                if job := self.jobs.pop(reference, None):
                    self._end(job, reference)
            self._house()
            self._end_hung()

    def _house(self) -> None:
        """A worker that cannot start because its node is gone waits for another. It may do so for as long as the
        others get on without it, and else for `placement.patience` seconds: then `SetupError` ends the run.
        """
        now = time.monotonic()
        loading = [job for job in self.jobs.values() if job.epoch is None]
        if not loading or now - self._looked < 1:
            return
        self._looked = now
        homeless = self.fleet.homeless()
        waiting = [job.seat for job in loading if job.seat in homeless]
        if new := [seat for seat in waiting if seat not in self._homeless]:
            log.warning("no node has a place for %s: waiting for one", _names(new))
        self._homeless = {seat: self._homeless.get(seat, now) for seat in waiting}
        for job in loading:
            if job.seat in self._homeless:
                job.begin = now
        patience = self.config.placement.patience
        late = [seat for seat, since in self._homeless.items() if now - since > patience]
        for kind in ("evaluator",) if self.course.finished else ("learner", "explorer", "scorer"):
            missing = [seat for seat in late if seat.kind == kind]
            if missing and (kind == "learner" or len(missing) == len(self.fleet.of(kind))):
                raise SetupError(
                    f"for {patience:g} s no node has had a place for {_names(waiting)}, whose node is gone: add a node "
                    "and run the same command again, which goes on from the last resume point"
                )

    def _end_hung(self) -> None:
        """A worker whose call takes longer than any should is as good as dead: it is killed, and replaced."""
        limit = self.config.placement.call_limit
        if limit is None:
            return
        for job in list(self.jobs.values()):
            allowed = limit if job.epoch is not None else max(limit, SETUP_LIMIT)
            if time.monotonic() - job.begin < allowed:
                continue
            if job in self.jobs.values():  # not lost with another one meanwhile
                self._dead(job.seat, TimeoutError(f"a call took longer than placement.call_limit, {allowed:g} s"), [])

    def _end(self, job: Job, reference: Any) -> None:
        """One call has ended, well or not."""
        seat = job.seat
        self._busy_until_now(seat)
        seat.jobs -= 1
        errors = self.ray.exceptions
        try:
            result = self.ray.get(reference)
        except errors.RayTaskError as error:  # the worker lives, and says what is wrong
            if job.epoch in (None, self.epoch):
                self._failed(job, error)
        except errors.RayError as error:
            self._dead(seat, error, [job])
        else:
            if job.epoch is not None and seat.kind != "learner":
                seat.deaths = 0
            if job.epoch in (None, self.epoch):
                job.done(result)

    def _busy_until_now(self, seat: Seat) -> None:
        """Being set up is no work."""
        now = self._tick()
        if seat.jobs and seat.ready:
            self.course.busy[seat.kind] += now - seat.since
        seat.since = now

    def _failed(self, job: Job, error: Any) -> None:
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(cause, TeacherLostError):
            job.undo()
            scorer = self.fleet.of("scorer")[cause.scorer]
            if scorer.life == cause.life:
                self._dead(scorer, cause, [])
        elif isinstance(cause, EngineLostError):  # the worker lives, and is of no use without its engine
            self._dead(job.seat, cause, [job])
        elif isinstance(cause, self.ray.exceptions.RayError) and job.seat.kind == "explorer":
            self._dead(self.fleet.of("learner")[0], cause, [])  # the weights are gone with the node that held them
        elif job.seat.kind == "learner" and _of_peers(cause):
            self._dead(job.seat, cause, [])
        else:
            raise cause from None

    def _dead(self, seat: Seat, error: BaseException, gone: list[Job]) -> None:
        """A worker died: all that it was doing is handed out again, and another takes its seat."""
        self.fleet.died(seat, error)
        log.warning("%s %d is replaced: %s", seat.kind, seat.index, " ".join(str(error).split())[:200])
        self.course.replaced[seat.kind] += 1
        if seat.kind == "learner":
            self._rewind()
            return
        self._busy_until_now(seat)
        doing = [reference for reference, job in self.jobs.items() if job.seat is seat]
        for job in [*gone, *(self.jobs.pop(reference) for reference in doing)]:
            if job.epoch == self.epoch:
                job.undo()
        self._seat(seat)

    def _seat(self, seat: Seat) -> None:
        """A new worker, which takes part once it is set up."""

        def ready(pid: int) -> None:
            seat.ready, seat.pid = True, pid

        self.fleet.fill(seat)
        self._call(seat, self.fleet.start(seat), ready)


def _names(seats: list[Seat]) -> str:
    return ", ".join(f"{seat.kind} {seat.index}" for seat in seats)


def _of_peers(error: Exception) -> bool:
    """Whether a rank's error is that of a call to the others: one of them died, and the news came this way first."""
    return type(error) is RuntimeError or type(error).__module__.startswith("torch")
