"""A player with an expert's hands and a beginner's habits: what the small students are cloned from.

Most of its failures are long: it looks for things where they cannot be and turns up at the box without them. Correct
feedback can undo such habits; an episode that one wrong focus ends teaches little.
"""

from __future__ import annotations

from divopd.envs.scienceworld.expert import Expert
from divopd.envs.scienceworld.knowledge import BOXES, ROOMS, THERMOMETER


class Novice(Expert):
    """The expert's distribution, of which bad habits take a share where their moment comes.

    `wander`: to any room instead of where the expert goes, or of looking around. `forget`: on to the next room without
    taking, or without measuring. `stall`: look around or at the inventory once more. `guess`: focus on another thing in
    sight, put it into another box. Shares in [0, 1].
    """

    def __init__(
        self,
        wander: float,
        forget: float,
        stall: float,
        guess: float,
        spread: float = 0.17,
        noise: float = 0.03,
    ) -> None:
        super().__init__(spread, noise)
        if not all(0 <= share <= 1 for share in (wander, forget, stall, guess)):
            raise ValueError(f"habits are shares between 0 and 1, got {wander}, {forget}, {stall}, {guess}")
        self.wander, self.forget, self.stall, self.guess = wander, forget, stall, guess

    def distribution(self, allowed: tuple[str, ...]) -> dict[str, float]:
        """Probability of each command worth a thought."""
        probability = super().distribution(allowed)
        preferred = self.choices()[0]
        self._shift(probability, self.stall, ["look around", "inventory"])
        share, commands = self._habit(preferred)
        self._shift(probability, share, commands)
        return probability

    @staticmethod
    def _shift(probability: dict[str, float], share: float, commands: list[str]) -> None:
        """Take a share of all mass for some commands, in place."""
        if not commands:
            return
        for command in probability:
            probability[command] *= 1 - share
        for command in commands:
            probability[command] = probability.get(command, 0.0) + share / len(commands)

    def _habit(self, preferred: str) -> tuple[float, list[str]]:
        """What habit would do instead of the expert's preferred command, and how strong it is."""
        wanted, beliefs = self._state()
        if preferred.startswith("teleport to ") or preferred == "look around":
            rooms = [room for room in ROOMS if room != beliefs.room]
            return self.wander, [f"teleport to {room}" for room in rooms]
        if preferred.startswith("pick up ") or preferred.startswith(f"use {THERMOMETER}"):
            onward = wanted.room if preferred == f"pick up {THERMOMETER}" else wanted.box_room
            if onward != beliefs.room:
                return self.forget, [f"teleport to {onward}"]
            return self.forget, [f"move {wanted.what} to {box}" for box in (wanted.box, wanted.other_box) if box]
        if preferred.startswith("focus on "):
            others = [thing for thing in beliefs.here() if f"focus on {thing}" != preferred and thing not in BOXES]
            return self.guess, [f"focus on {thing}" for thing in others]
        if preferred.startswith("move ") and wanted.other_box:
            thing, box = preferred.removeprefix("move ").split(" to ")
            other = wanted.other_box if box == wanted.box else wanted.box
            return self.guess, [f"move {thing} to {other}"]
        return 0.0, []
