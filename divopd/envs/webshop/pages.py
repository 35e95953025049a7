"""What the shop's pages show: the visible text nodes of the original's HTML, and what can be clicked on them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from divopd.envs.webshop.catalog import Product

Mode = Literal["text", "text_rich"]
Kind = Literal["plain", "button", "link", "option"]
MODES: tuple[Mode, ...] = ("text", "text_rich")
PER_PAGE = 10
SUB_PAGES = ("description", "features", "reviews", "attributes")
BACK, PREV, NEXT, BUY, SEARCH = "back to search", "< prev", "next >", "buy now", "search"
_HTML_SAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"})
_BLANKS = frozenset(" \n\t\f\r")


@dataclass(frozen=True, slots=True)
class Piece:
    """One text node; `group` is the option that a label belongs to."""

    text: str
    kind: Kind = "plain"
    group: str = ""


def node(text: str, kind: Kind = "plain", group: str = "") -> list[Piece]:
    """A text node as the original's HTML parser keeps it.

    No text, or blanks with a line break among them, leave no node; other blanks shrink to one space.
    """
    if _BLANKS.issuperset(text):
        return [Piece(" ", kind, group)] if text and "\n" not in text else []
    return [Piece(text, kind, group)]


def render(pieces: Iterable[Piece], mode: Mode, clicked: Collection[Piece] = ()) -> str:
    """The observation: nodes between ` [SEP] `, or (text_rich) one a line with buttons marked, clicked ones as such."""
    if mode == "text":
        return " [SEP] ".join(piece.text.strip() for piece in pieces)
    lines = []
    chosen = []
    for piece in pieces:
        mark = "clicked button" if piece in clicked else "button"
        if piece.kind == "plain":
            lines.append(f"{piece.text}\n")
        elif piece.kind == "button":
            lines.append(f"[button] {piece.text} [button_]\n")
        elif piece.kind == "link":
            lines.append(f"\n[{mark}] {piece.text} [{mark}_]\n")
        else:
            lines.append(f"  [{mark}] {piece.text} [{mark}_]\n")
            if piece in clicked:
                chosen.append(f"You have clicked {piece.text}.\n")
    return "".join(chosen[::-1] + lines)


def search_page(instruction: str) -> list[Piece]:
    """The first page."""
    return [Piece("WebShop"), Piece("Instruction: "), *node(instruction), Piece("Search", "button")]


def head(instruction: str) -> list[Piece]:
    """What every page but the first and the last starts with."""
    return [Piece("Instruction:"), *node(instruction), Piece("Back to Search", "button")]


def results_page(page: int, total: int, products: Sequence[Product]) -> list[Piece]:
    """A page of results, below its head. There is always a next page, if an empty one."""
    pieces = [Piece(f"Page {page} (Total results: {total})")]
    pieces += [Piece("< Prev", "button")] * (page > 1) + [Piece("Next >", "button")]
    for product in products:
        pieces += [Piece(product.asin, "link"), *node(product.title), Piece(product.price_tag)]
    return pieces


def item_page(product: Product, show_attributes: bool) -> list[Piece]:
    """A product's page, below its head."""
    pieces = [Piece("< Prev", "button")]
    for name, values in product.options.items():
        pieces += node(name)
        for value in values:
            pieces += node(value, "option", name)
    pieces += [*node(product.title), Piece(f"Price: {product.price_tag}"), Piece("Rating: N.A.")]
    buttons = ("Description", "Features", "Reviews", *(("Attributes",) if show_attributes else ()), "Buy Now")
    return pieces + [Piece(name, "button") for name in buttons]


def sub_page(product: Product, name: str) -> list[Piece]:
    """The page behind a button of `SUB_PAGES`, below its head. Reviews stay empty: the original publishes none."""
    pieces = [Piece("< Prev", "button")]
    if name == "description":
        pieces += node(product.description)
    elif name == "features":
        pieces += [piece for bullet in product.bullets for piece in node(f" {bullet}")]
    elif name == "attributes":
        pieces += [piece for attribute in product.attributes for piece in node(f" {attribute}")]
        for text in (product.category, product.query, product.product_category):
            pieces += node(text)
    return pieces


def done_page(asin: str, options: Mapping[str, str], reward: float) -> list[Piece]:
    """The last page; the original leaves most of its fields empty."""
    chosen = json.dumps(options, sort_keys=True).translate(_HTML_SAFE)
    texts = [
        "Thank you for shopping with us!",
        "Your code: ",
        "None",
        " (Paste it in your MTurk interface.)",
        "Purchased",
    ]
    texts += ["asin", asin, "options", chosen, "attrs", "None", "category", "None", "query", "None"]
    texts += ["product category", "None", "Target", "asin", "options", "attrs", "price upper", "instuction text"]
    texts += ["category", "product category", "query", "Goal ", "None", "Reward"]
    texts += ["Your score (min 0.0, max 1.0)", str(reward), "Reward Details ", "None"]
    return [Piece(text) for text in texts]


def item_buttons(product: Product, show_attributes: bool) -> dict[str, str | None]:
    """What can be clicked on a product's page, in order: name -> the option that it sets (None: a button).

    A value of several options sets the last of them; a value named like a button takes that button's place.
    """
    buttons: dict[str, str | None] = dict.fromkeys((BACK, PREV, *SUB_PAGES[: 4 if show_attributes else 3], BUY))
    for name, values in product.options.items():
        buttons.update(dict.fromkeys(values, name))
    return buttons
