"""WebShop pages made by hand, in the engine's text form."""

from __future__ import annotations

from divopd.envs.webshop.expert import NEXT, RESTART

GOAL = (
    "please show me a pair of boots in black and with wide width, and they should be arched and vegan, and price lower "
    "than 110.00 dollars"
)
START = f"WebShop [SEP] Instruction:  [SEP] {GOAL} [SEP] Search"
HEAD = f"Instruction: [SEP] {GOAL} [SEP] Back to Search [SEP] "
FULL, PLAIN = "search[boots black wide arched vegan]", "search[boots arched vegan]"


def results(*rows: tuple[str, str, str], page: int = 1) -> str:
    listed = " [SEP] ".join(part for row in rows for part in row)
    return HEAD + f"Page {page} (Total results: 50) [SEP] Next > [SEP] {listed}"


def item(title: str, *, price: str = "$70.0", colors: str = "black [SEP] blue") -> str:
    return HEAD + (
        f"< Prev [SEP] color [SEP] {colors} [SEP] width [SEP] regular [SEP] wide [SEP] {title} [SEP] "
        f"Price: {price} [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )


DEAR = ("B006AAAA01", "Norvane Arched Vegan Boots for Trail, Laced", "$110.01")
GOOD = ("B006AAAA02", "Boots by Wexmoor, Vegan, Laced and Arched, for Beach", "$110.0")
ALSO = ("B006AAAA03", "Arched and Vegan Boots for Trail, Leather, by Elmwick", "$20.25 to $29.5")
OTHER = ("B005AAAA04", "Arched and Vegan Sneakers for Trail, Laced, by Elmwick", "$20.25")
ALLOWED = (RESTART, NEXT, *(f"click[{row[0].lower()}]" for row in (DEAR, GOOD, ALSO, OTHER)))
