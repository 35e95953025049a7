"""The words of the generated catalogue: departments, product types, attributes, option groups, makers.

Every content word is a lower-case single word and belongs to one kind alone (type, attribute or option value), so that
a reader with a closed vocabulary knows what a word means without its sentence. All names of makers are invented.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """An option group: its name on the page, its values, and how an instruction asks for one (`{}`: the value)."""

    key: str
    name: str
    values: tuple[str, ...]
    phrase: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A product type: its word in titles, the category query it is found under, and its article in a sentence."""

    word: str
    query: str
    article: str
    groups: tuple[str, ...]
    prices: tuple[int, int]  # dollars, inclusive


@dataclass(frozen=True, slots=True)
class Department:
    """Product types that share a pool of attributes and of places."""

    category: str  # WebShop's top-level field
    name: str
    attributes: tuple[str, ...]
    places: tuple[str, ...]
    kinds: tuple[Kind, ...]


def _group(key: str, phrase: str, values: str) -> Group:
    return Group(key, key.split()[-1].capitalize(), tuple(values.split()), phrase)


GROUPS: dict[str, Group] = {
    group.key: group
    for group in (
        _group("color", "in {}", "black white blue green pink purple yellow gray brown orange"),
        _group("size", "in size {}", "small medium large petite tall"),
        _group("fit size", "in size {}", "seven eight nine ten eleven twelve"),
        _group("width", "with {} width", "narrow regular wide"),
        _group("pattern", "with a {} pattern", "striped plaid floral dotted plain"),
        _group("scent", "with {} scent", "lavender rose citrus jasmine coconut vanilla"),
        _group("volume", "in {} volume", "mini travel family jumbo"),
        _group("edition", "in the {} edition", "basic classic premium deluxe"),
        _group("plug", "with {} plug", "american british european"),
        _group("capacity", "with {} capacity", "single double triple quadruple"),
        _group("bed size", "in {} size", "twin full queen king"),
        _group("flavor", "with {} flavor", "cherry maple ginger cinnamon hazelnut banana"),
        _group("pack", "in a {} pack", "trio dozen crate sampler"),
        _group("finish", "with {} finish", "matte glossy brushed"),
    )
}


def _kinds(groups: str, prices: tuple[int, int], *rows: str) -> tuple[Kind, ...]:
    """Rows of "article word query"; groups separated by commas."""
    names = tuple(name.strip() for name in groups.split(","))
    return tuple(Kind(word, query, article, names, prices) for article, word, query in (row.split("|") for row in rows))


DEPARTMENTS: tuple[Department, ...] = (
    Department(
        "fashion",
        "Clothing",
        ("washable", "breathable", "stretchy", "lightweight", "fleece", "quilted", "cropped", "pleated"),
        ("Office", "Weekend", "Winter", "Summer"),
        _kinds(
            "color, size, pattern",
            (12, 148),
            "a|hoodie|hoodies",
            "a|shirt|shirts",
            "a|jacket|jackets",
            "a|skirt|skirts",
            "a|sweater|sweaters",
        ),
    ),
    Department(
        "fashion",
        "Footwear",
        ("slipproof", "cushioned", "vegan", "leather", "laced", "insulated", "arched", "scuffproof"),
        ("Street", "Trail", "Beach", "Party"),
        _kinds(
            "color, fit size, width",
            (20, 168),
            "a pair of|sneakers|sneakers",
            "a pair of|boots|boots",
            "a pair of|sandals|sandals",
            "a pair of|loafers|loafers",
            "a pair of|slippers|slippers",
        ),
    ),
    Department(
        "beauty",
        "Beauty",
        ("moisturizing", "soothing", "gentle", "purifying", "unscented", "nourishing", "brightening", "firming"),
        ("Morning", "Evening", "Spa", "Gym"),
        _kinds(
            "scent, volume",
            (8, 124),
            "a|shampoo|shampoos",
            "a|lotion|lotions",
            "a|serum|serums",
            "a|soap|soaps",
            "a|balm|balms",
        ),
    ),
    Department(
        "electronics",
        "Electronics",
        ("wireless", "rechargeable", "foldable", "quiet", "magnetic", "backlit", "programmable", "compact"),
        ("Desk", "Car", "Studio", "Hotel"),
        _kinds(
            "color, edition, plug",
            (15, 188),
            "a|speaker|speakers",
            "a|charger|chargers",
            "a|keyboard|keyboards",
            "a|projector|projectors",
            "a|microphone|microphones",
        ),
    ),
    Department(
        "kitchen",
        "Kitchen",
        ("stackable", "nonstick", "ceramic", "ovenproof", "handmade", "chipproof", "engraved", "footed"),
        ("Breakfast", "Dinner", "Picnic", "Camping"),
        _kinds(
            "color, capacity",
            (9, 142),
            "a|mug|mugs",
            "a|kettle|kettles",
            "a|skillet|skillets",
            "a|teapot|teapots",
            "a|bowl|bowls",
        ),
    ),
    Department(
        "garden",
        "Bedding",
        ("fluffy", "hypoallergenic", "thermal", "woven", "reversible", "weighted", "cooling", "fringed"),
        ("Bedroom", "Nursery", "Cottage", "Dormitory"),
        _kinds(
            "color, bed size, pattern",
            (18, 178),
            "a|pillow|pillows",
            "a|blanket|blankets",
            "a|curtain|curtains",
            "a|mattress|mattresses",
            "a|comforter|comforters",
        ),
    ),
    Department(
        "grocery",
        "Grocery",
        ("organic", "kosher", "sugarless", "crunchy", "roasted", "salted", "glutenfree", "fairtrade"),
        ("Snack", "Holiday", "Brunch", "Lunchbox"),
        _kinds(
            "flavor, pack",
            (6, 118),
            "some|cookies|cookies",
            "some|coffee|coffees",
            "some|granola|granolas",
            "some|crackers|crackers",
            "some|popcorn|popcorns",
        ),
    ),
    Department(
        "garden",
        "Outdoor",
        ("rustproof", "solar", "weatherproof", "portable", "adjustable", "bamboo", "hanging", "decorative"),
        ("Patio", "Balcony", "Porch", "Terrace"),
        _kinds(
            "color, finish",
            (14, 164),
            "a|planter|planters",
            "a|lantern|lanterns",
            "a|hammock|hammocks",
            "a|parasol|parasols",
            "a|birdbath|birdbaths",
        ),
    ),
)

# fmt: off
MAKERS = (
    "Brindlow", "Castrune", "Dellavar", "Elmwick", "Farrowen", "Glintara",
    "Hollamere", "Ivendale", "Jarrowby", "Kestrion", "Lumbrake", "Mirthwell",
    "Norvane", "Ostergale", "Pellucor", "Quenlow", "Rustavel", "Sablewin",
    "Thornmere", "Umberlie", "Vantrell", "Wexmoor", "Yarrowin", "Zelbrook",
)
# fmt: on

# {kind}, {first}, {second}, {third} are capitalised words; {maker} and {place} are capitalised too.
TITLES = (
    "{maker} {first} {second} {kind} for {place}, {third}",
    "{kind} by {maker}, {first}, {second} and {third}, for {place}",
    "{maker} {first} {kind}, {second} and {third}, for {place}",
    "{first} and {second} {kind} for {place}, {third}, by {maker}",
)

# {item} is the type with its article, {wish} the attributes joined by "and", {options} the phrases of the options.
INSTRUCTIONS = (
    "i am looking for {item} that {verb} {wish}, {options}",
    "i need {article} {plainwish} {word} {options}",
    "find me {article} {plainwish} {word}, {options}",
    "please show me {item} {options}, and {pronoun} should be {wish}",
    "i want to buy {article} {plainwish} {word} {options}",
    "can you help me find {item} {options}? i would like {pronoun_object} to be {wish}",
)

KINDS: tuple[Kind, ...] = tuple(kind for department in DEPARTMENTS for kind in department.kinds)
KIND_WORDS: tuple[str, ...] = tuple(kind.word for kind in KINDS)
ATTRIBUTE_WORDS: tuple[str, ...] = tuple(word for department in DEPARTMENTS for word in department.attributes)
OPTION_WORDS: tuple[str, ...] = tuple(value for group in GROUPS.values() for value in group.values)
CONTENT_WORDS: frozenset[str] = frozenset((*KIND_WORDS, *ATTRIBUTE_WORDS, *OPTION_WORDS))
