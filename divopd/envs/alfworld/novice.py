"""A player with an expert's hands and a beginner's habits: what the small students are cloned from.

A student that cannot even copy a name from its context needs words, not a policy; on-policy distillation starts from
models that speak the language and choose badly. These habits are wrong choices that correct feedback can undo.
"""

from __future__ import annotations

from divopd.envs.alfworld.beliefs import type_of
from divopd.envs.alfworld.expert import Expert, _destinations, _toward


class Novice(Expert):
    """The expert's distribution, of which bad habits take a share where their moment comes.

    `walk_past`: leave a closed container closed and go to the next place. `raw`: carry the object to its destination
    without cleaning, heating or cooling it. `wander`: look anywhere, places already seen included. Shares in [0, 1].
    """

    def __init__(self, walk_past: float, raw: float, wander: float, spread: float = 0.17, noise: float = 0.03) -> None:
        super().__init__(spread, noise)
        if not all(0 <= share <= 1 for share in (walk_past, raw, wander)):
            raise ValueError(f"habits are shares between 0 and 1, got {walk_past}, {raw}, {wander}")
        self.walk_past, self.raw, self.wander = walk_past, raw, wander

    def distribution(self, allowed: tuple[str, ...]) -> dict[str, float]:
        """Probability of each admissible command, in the order given."""
        probability = super().distribution(allowed)
        share, commands = self._habit(self.choices(allowed)[0], frozenset(allowed))
        if commands:
            probability = {command: mass * (1 - share) for command, mass in probability.items()}
            for command in commands:
                probability[command] += share / len(commands)
        return probability

    def _habit(self, preferred: str, allowed: frozenset[str]) -> tuple[float, list[str]]:
        """What habit would do instead of the expert's preferred command, and how strong it is."""
        wanted, beliefs = self._state()
        held, walks = beliefs.holding, [f"go to {r}" for r in beliefs.from_here() if f"go to {r}" in allowed]
        if held is None and preferred.startswith("open "):
            return self.walk_past, walks[:1]
        if held is None and preferred.startswith("go to "):
            return self.wander, walks
        if (
            held is not None
            and type_of(held) == wanted.obj
            and wanted.state not in (None, *beliefs.states.get(held, ()))
        ):
            onward = [_toward(r, f"move {held} to {r}", allowed) for r in _destinations(wanted, beliefs)[:1]]
            return self.raw, [command for command in onward if command in allowed]
        return 0.0, []
