"""Defects of the original that are mended here, each by a name. Without any the engine is the original.

Two things hold in any case, because episodes must be the same everywhere: prices of ranges and price bounds, which
the original draws anew in each process, come from a named seed; and an action at which it crashes does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from divopd.envs.base import EnvError


@dataclass(frozen=True, slots=True)
class Fixes:
    """Which defects are mended; all by default.

    - `block_backdoors`: a search that starts with `<r>`, `<a>`, `<c>` or `<q>` lists random products, crashes, or
      lists a whole category or query of the catalogue. Mended: it does nothing.
    - `end_is_final`: after `buy now` the episode can be searched and bought in again. Mended: nothing works any more.
    - `route_by_page`: where `< prev` leads is read from the address, which holds the query; a query with
      `search_results` or `item_page` in it leads astray. Mended: it depends on the page shown.
    - `clicks_by_name`: an option whose text holds a `[` or a line break, or is `search`, cannot be clicked, because an
      action is split at its last `[`. Mended: `click[...]` around its words clicks it. (What cannot be clicked is never
      listed among the allowed actions.)
    - `marks_by_state`: rich text marks an option as clicked where its text stands quoted in the address, so a query, an
      option name or a sign outside ASCII decides. Mended: the chosen value of each group is marked.
    - `reachable_goals_only`: some goals give less than 1 even on their own product. Mended: they are left out.
    - `split_by_product`: the original's splits (test: goals 0-499, dev: 500-1499, train: the rest) share products.
      Mended: `train` and `eval` are products drawn by seed.
    """

    block_backdoors: bool = True
    end_is_final: bool = True
    route_by_page: bool = True
    clicks_by_name: bool = True
    marks_by_state: bool = True
    reachable_goals_only: bool = True
    split_by_product: bool = True

    @classmethod
    def only(cls, names: Iterable[str]) -> Fixes:
        """These fixes and no others. Raises `EnvError` for an unknown name."""
        known = [field.name for field in fields(cls)]
        chosen = list(names)
        for name in chosen:
            if name not in known:
                raise EnvError(f"unknown WebShop fix {name!r}: expected some of {', '.join(known)}")
        return cls(**{name: name in chosen for name in known})


STRICT = Fixes.only(())
"""The original, defects included."""
