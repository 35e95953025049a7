"""Names, order and looks of methods, the same in every table and figure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

Marker = str | tuple[int, Literal[0, 1], int]  # as matplotlib's: corners, 0 for a polygon or 1 for a star, degrees


@dataclass(frozen=True, slots=True)
class Look:
    """How one method is shown. Line style, marker and hatch tell methods apart without colour."""

    label: str
    colour: str
    line: str | tuple[float, tuple[float, ...]]
    marker: Marker
    hatch: str


# Okabe & Ito's colours, which people with any colour vision tell apart; lightness differs between neighbours
_GREY, _ORANGE, _SKY, _GREEN, _BLUE, _RED, _PINK = (
    "#555555", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
LOOKS = {
    "vanilla": Look("Vanilla OPD", _GREY, (0, (4, 2)), "o", ""),
    "vanilla_256": Look("Vanilla, 256 read", _PINK, (0, (1, 1)), "v", "..."),
    "gate_only": Look("Gate only", _SKY, (0, (3, 1, 1, 1)), "^", "xx"),
    "top_b": Look("Top-B", _GREEN, (0, (5, 1)), "P", "++"),
    "divopd_k_inf": Look("DivOPD, k = ∞", _RED, (0, (3, 1, 1, 1, 1, 1)), "X", "oo"),
    "divopd_base": Look("DivOPD-Base", _ORANGE, (0, (1, 1.2)), "s", "///"),
    "divopd": Look("DivOPD", _BLUE, "-", "D", "\\\\\\"),
    # colours beyond these: Paul Tol's muted scheme
    "vanilla_recovery": Look("Vanilla OPD + R", "#000000", (0, (4, 2)), "p", "--"),
    "divopd_base_recovery": Look("DivOPD-Base + R", "#8C5A00", (0, (1, 1.2)), "h", "//"),
    "divopd_recovery": Look("DivOPD + R", "#332288", "-", "*", "**"),
    "tcod_f2b": Look("TCOD-F2B", "#117733", (0, (5, 1)), "<", "||"),
    "tcod_b2f": Look("TCOD-B2F", "#44AA99", (0, (3, 1)), (5, 1, 180), "|-"),
    "turnopd": Look("TurnOPD", "#882255", (0, (6, 1, 1, 1)), ">", "OO"),
    "guided_opd": Look("Guided-OPD", "#B8A900", (0, (2, 1)), "d", "xxx"),
}
_SPARE = (_PINK, _GREEN, _RED, _SKY)
# filled, as all are: of a mark that is lines alone the white edge leaves nothing
_SPARE_MARKERS: tuple[Marker, ...] = ("8", "H", (4, 1, 0), (5, 0, 180), (6, 1, 0), (4, 1, 45))


def ordered(methods: Iterable[str]) -> list[str]:
    """Distinct methods: known ones in LOOKS's order, then the others by name."""
    known = list(LOOKS)
    return sorted(set(methods), key=lambda m: (known.index(m) if m in known else len(known), m))


def look(method: str, methods: Iterable[str] = ()) -> Look:
    """How `method` is shown; one without a look of its own gets a spare one by its place among `methods`."""
    if method in LOOKS:
        return LOOKS[method]
    others = [m for m in ordered(methods) if m not in LOOKS] or [method]
    i = others.index(method) if method in others else 0
    line = (0, (6 - i % 3, 1 + i % 2))
    return Look(method, _SPARE[i % len(_SPARE)], line, _SPARE_MARKERS[i % len(_SPARE_MARKERS)], "-" * (1 + i % 3))


def label(method: str) -> str:
    return look(method).label


# how rollouts arrived, by `pipeline.arrives` and `order`
ARRIVED = {
    ("step", "ended"): "by explorer step, its rollouts as they ended",
    ("step", "task"): "by explorer step, its rollouts by task",
    ("rollout", "ended"): "by rollout, as they end",
}


def arrivals(summary: pd.DataFrame) -> list[str]:
    """What to say of how rollouts of these runs arrived, on which vanilla's choice rests; of an older summary nothing.

    `summary`: a row a run, with `arrives` and `order` of its pipeline.
    """
    if "arrives" not in summary:
        return []
    kinds = summary[["arrives", "order"]].drop_duplicates().itertuples(index=False, name=None)
    return ["Arrivals: " + "; and ".join(ARRIVED[kind] for kind in kinds) + "."]
