"""A buyer with an expert's hands and a beginner's habits: what the small students are cloned from.

The habits are wrong choices that correct feedback can undo: a search for the bare type, the first result whatever it
is, paging on past what fits, buying before the options are chosen. Searching badly and wandering use up the turns, so
that failed episodes are long.
"""

from __future__ import annotations

from divopd.envs.webshop.expert import BACK, BUY, NEXT, Expert


class Novice(Expert):
    """The expert's distribution, of which bad habits take a share where their moment comes.

    `vague`: search for the type alone. `hasty`: look at the first result not looked at yet, whatever it is. `wander`:
    turn the page, or leave an item that fits. `careless`: buy at once. Shares in [0, 1].
    """

    def __init__(
        self,
        vague: float,
        hasty: float,
        wander: float,
        careless: float,
        spread: float = 0.13,
        detour: float = 0.03,
        noise: float = 0.02,
    ) -> None:
        super().__init__(spread, detour, noise)
        shares = (vague, hasty, wander, careless)
        if not all(0 <= share <= 1 for share in shares) or max(hasty + wander, wander + careless) > 1:
            raise ValueError(f"habits are shares between 0 and 1, those of one page at most 1 together, got {shares}")
        self.vague, self.hasty, self.wander, self.careless = shares
        self._looked: set[str] = set()

    def reset(self, goal: str, observation: str) -> None:
        super().reset(goal, observation)
        self._looked = set()

    def observe(self, action: str, observation: str) -> None:
        super().observe(action, observation)
        self._looked.add(action)

    def distribution(self, allowed: tuple[str, ...]) -> dict[str, float]:
        """Probability of each allowed command and of the searches that the novice would make."""
        habits = {command: share for command, share in self._habits(allowed) if share > 0}
        left = 1 - sum(habits.values())
        probability = {command: mass * left for command, mass in super().distribution(allowed).items()}
        for command, share in habits.items():
            probability[command] = probability.get(command, 0.0) + share
        return probability

    def _habits(self, allowed: tuple[str, ...]) -> list[tuple[str, float]]:
        """What habit would do instead, and how strongly."""
        wish, page = self._state()
        if page.kind == "search":
            return [(f"search[{wish.kind}]", self.vague)]
        if page.kind == "results":
            listed = [f"click[{product.asin}]" for product in page.results]
            fresh = [command for command in listed if command not in self._looked]
            turning = [(NEXT, self.wander)] if page.results else []
            return [(command, self.hasty) for command in fresh[:1]] + turning
        if page.kind == "item":
            preferred = self.choices(allowed)[0]
            leaving = [] if preferred == BACK else [(BACK, self.wander)]
            return leaving + ([] if preferred == BUY else [(BUY, self.careless)])
        return []
