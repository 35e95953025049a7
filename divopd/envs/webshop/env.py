"""WebShop behind the project's environment protocol."""

from __future__ import annotations

from collections.abc import Mapping

from divopd.envs.base import EnvError, Observation, Step
from divopd.envs.webshop.catalog import Catalog
from divopd.envs.webshop.fixes import Fixes
from divopd.envs.webshop.goals import Goal
from divopd.envs.webshop.pages import MODES, Mode
from divopd.envs.webshop.session import Session, Shop
from divopd.envs.webshop.splits import find_goal

QUERY = "search[<query>]"  # stands for every search among the allowed actions
ALL_FIXES = Fixes()


class WebshopEnv:
    """The text environment of WebShop; one episode at a time, reused for many. The catalogue is shared, so it is cheap.

    Actions are `search[words]`, on every page, and `click[name]` for what the page shows. Anything else does nothing
    and is not `valid`. Buying ends the episode; its reward, 0 to 1, is `reward` and `score`, and 1 is `success`.
    `text` is the original's observation, which starts with the instruction.
    """

    name = "webshop"

    def __init__(
        self,
        catalog: Catalog,
        goals: Mapping[str, Goal],
        observation_mode: Mode = "text",
        fixes: Fixes = ALL_FIXES,
        show_attributes: bool = False,
    ) -> None:
        """`goals`: task id -> goal (`divopd.envs.webshop.splits.tasks_of`). Raises `EnvError` for an unknown mode."""
        if observation_mode not in MODES:
            raise EnvError(f"unknown observation mode {observation_mode!r}: expected one of {', '.join(MODES)}")
        _ = catalog.title_nouns  # asked for now, not at the first purchase
        self.catalog = catalog
        self.fixes = fixes
        self._goals = goals
        self._shop = Shop(catalog, observation_mode, show_attributes)
        self._session: Session | None = None
        self._last: tuple[str, tuple[str, ...]] = ("", ())

    def reset(self, task: str) -> Observation:
        """Start the task at the search page. Raises `EnvError` for an unknown task."""
        goal = find_goal(self._goals, task)
        self._session = Session(self._shop, goal, self.fixes)
        self._last = ("", self._allowed(self._session))
        return Observation(text=self._session.text(), goal=goal.instruction, allowed=self._last[1])

    def step(self, action: str) -> Step:
        """Do one action. Raises `EnvError` before the first `reset`."""
        session = self._session
        if session is None:
            raise EnvError("no WebShop episode is running: call reset first")
        before, purchase = session.place, session.reward
        valid = session.act(action)
        allowed = self._allowed(session)
        repeat = (action, allowed) == self._last
        self._last = (action, allowed)
        done = session.place.kind == "done"
        bought = session.reward is not purchase
        total = session.reward.total if session.reward is not None and (bought or done) else 0.0
        return Step(
            text=session.text(),
            reward=total if bought else 0.0,
            done=done,
            success=done and total > 1 - 1e-9,
            valid=valid,
            progress=valid and session.place != before and not repeat,
            allowed=allowed,
            score=total if done else 0.0,
        )

    def close(self) -> None:
        """End the running episode; a later `reset` starts anew."""
        self._session = None

    @staticmethod
    def _allowed(session: Session) -> tuple[str, ...]:
        if session.fixes.end_is_final and session.place.kind == "done":
            return ()
        return (QUERY,) if session.place.kind == "search" else session.offered()
