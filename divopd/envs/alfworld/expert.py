"""An ALFWorld expert that acts on observations alone, as a calibrated distribution over the admissible commands.

It sees the goal, the observations, and the actions that anyone executed; so it can label states that a weaker player
reached. It searches the receptacles in the order in which the room listing names them, which small models can imitate.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from divopd.envs.alfworld.beliefs import Beliefs, Wanted, parse_goal, type_of


class Expert:
    """Label any state of an episode: `reset`, then `observe` each executed action, and ask for a distribution.

    The preferred command gets what is left after `spread`, shared by the other sensible commands of the same kind (if
    there are any), and `noise`, shared by all admissible commands. A teacher that puts all mass on one command would
    punish every other sampled command with an extreme log-probability.
    """

    def __init__(self, spread: float = 0.17, noise: float = 0.03) -> None:
        if spread < 0 or noise < 0 or spread + noise >= 0.5:
            raise ValueError(f"spread and noise must be >= 0 and add up to less than 0.5, got {spread} and {noise}")
        self.spread, self.noise = spread, noise
        self._wanted: Wanted | None = None
        self._beliefs: Beliefs | None = None

    def reset(self, goal: str, observation: str) -> None:
        """Start an episode. Raises `EnvError` if the goal or the room listing cannot be understood."""
        self._wanted, self._beliefs = parse_goal(goal), Beliefs.from_listing(observation)

    def observe(self, action: str, observation: str) -> None:
        """Take in an executed action, whoever chose it, and what the environment answered."""
        del action  # the answer names all that changed, and an action without effect must not be believed
        self._state()[1].update(observation)

    def distribution(self, allowed: tuple[str, ...]) -> dict[str, float]:
        """Probability of each admissible command, in the order given."""
        if not allowed:
            raise ValueError("the expert chooses among admissible commands; ask the environment to list them")
        preferred, others = self.choices(allowed)
        probability = dict.fromkeys(allowed, self.noise / len(allowed))
        for command in others:
            probability[command] += self.spread / len(others)
        probability[preferred] += 1 - self.noise - (self.spread if others else 0)
        return probability

    def act(self, rng: random.Random | None, allowed: tuple[str, ...]) -> str:
        """Sample a command, or take the most probable one if `rng` is None."""
        probability = self.distribution(allowed)
        if rng is None:
            return max(probability, key=probability.__getitem__)
        return rng.choices(list(probability), weights=list(probability.values()))[0]

    def choices(self, allowed: Sequence[str]) -> tuple[str, list[str]]:
        """The preferred command and the other sensible ones of the same kind."""
        wanted, beliefs = self._state()
        for candidates in _plans(wanted, beliefs, frozenset(allowed)):
            commands = [c for c in dict.fromkeys(candidates) if c in allowed]
            if commands:
                return commands[0], commands[1:]
        walks = [c for c in allowed if c.startswith("go to ")]
        return (walks or list(allowed))[0], walks[1:]

    def _state(self) -> tuple[Wanted, Beliefs]:
        if self._wanted is None or self._beliefs is None:
            raise RuntimeError("the expert has no episode: call reset first")
        return self._wanted, self._beliefs


def _toward(receptacle: str, command: str, allowed: frozenset[str], inside: bool = True) -> str:
    """The next command on the way to `command` at a receptacle: go there, open it if its inside is needed, do it.

    Going to where one stands is not admissible, so receptacles that share the spot need no going.
    """
    if f"go to {receptacle}" in allowed:
        return f"go to {receptacle}"
    if inside and f"open {receptacle}" in allowed:
        return f"open {receptacle}"
    return command


def _plans(wanted: Wanted, beliefs: Beliefs, allowed: frozenset[str]) -> Iterable[list[str]]:
    """Candidate lists in falling priority; the first with an admissible command decides."""
    held = beliefs.holding
    if held is not None and type_of(held) == wanted.obj:
        yield _with_object(held, wanted, beliefs, allowed)
    elif held is not None:
        yield _put_down(held, beliefs, allowed)
    else:
        yield _fetch(wanted, beliefs, allowed)
    yield _search(beliefs, allowed)


def _with_object(held: str, wanted: Wanted, beliefs: Beliefs, allowed: frozenset[str]) -> list[str]:
    """Holding a wanted object: bring it into its state, then to its destination or under the lamp."""
    if wanted.kind == "look":
        return [_toward(r, f"use {lamp}", allowed, inside=False) for r, lamp in beliefs.lying(wanted.dest)]
    if wanted.state is not None and wanted.state not in beliefs.states.get(held, ()):
        tools = [r for r in beliefs.receptacles if type_of(r) == wanted.tool]
        return [_toward(r, f"{wanted.kind} {held} with {r}", allowed, inside=False) for r in tools]
    return [_toward(r, f"move {held} to {r}", allowed) for r in _destinations(wanted, beliefs)]


def _destinations(wanted: Wanted, beliefs: Beliefs) -> list[str]:
    """Where wanted objects go, best first; only one place if a first object of two lies there already."""
    places = [r for r in beliefs.receptacles if type_of(r) == wanted.dest]
    if wanted.kind == "two":
        counts = {r: sum(type_of(o) == wanted.obj for o in beliefs.contents.get(r, ())) for r in places}
        begun = [r for r in places if counts[r]]
        if begun:
            return [max(begun, key=counts.__getitem__)]
    return sorted(places, key=lambda r: r != beliefs.at)


def _fetch(wanted: Wanted, beliefs: Beliefs, allowed: frozenset[str]) -> list[str]:
    """Hands empty: take a wanted object seen somewhere, one that is already in its state first."""
    seen = beliefs.lying(wanted.obj)
    if wanted.kind == "two" and seen:
        settled = _destinations(wanted, beliefs)[:1]
        seen = [(r, o) for r, o in seen if r not in settled]
    seen.sort(key=lambda pair: wanted.state is not None and wanted.state not in beliefs.states.get(pair[1], ()))
    commands = [_toward(r, f"take {o} from {r}", allowed) for r, o in seen]
    verb = commands[0].split()[0] if commands else ""
    return [c for c in commands if c.startswith(verb)]


def _put_down(held: str, beliefs: Beliefs, allowed: frozenset[str]) -> list[str]:
    """Holding something not wanted: leave it here, or where it came from, which is sure to hold it."""
    here = [c for c in sorted(allowed) if c.startswith(f"move {held} to ")]
    if here:
        return here
    back = beliefs.origin.get(held)
    return [_toward(back, f"move {held} to {back}", allowed)] if back is not None else []


def _search(beliefs: Beliefs, allowed: frozenset[str]) -> list[str]:
    """Look into the next place not seen yet; once all were seen, look again everywhere, for something was missed."""
    order = beliefs.from_here()
    unseen = [r for r in order if r not in beliefs.seen] or order
    if beliefs.at is not None and unseen[-1] == beliefs.at and f"open {beliefs.at}" in allowed:
        return [f"open {beliefs.at}"]
    return [_toward(r, f"examine {r}", allowed) for r in unseen]
