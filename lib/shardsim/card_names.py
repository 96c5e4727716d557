"""Cards and machines by the names that people type: `h100`, `H100 SXM`, `a100 80 GB`, `8x 4090`, `p5.48xlarge`."""

import re
from collections.abc import Iterable, Mapping

_SAY_NOTHING = {
    "nvidia",
    "amd",
    "geforce",
    "tesla",
    "instinct",
    "gpu",
    "oam",
    "hbm2e",
    "hbm3",
    "hbm3e",
    "sxm",
    "sxm2",
    "sxm4",
    "sxm5",
}
_VARIANTS = {"pcie", "500w"}  # meant only if they are typed
_MEMORY = re.compile(r"(?<=\d)\s*g(i?b)?\b")


def squashed(name: str) -> str:
    """Reduce a name to its letters and digits: "DGX H100" and "dgx-h100" are the same."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def machine_named(text: str, machines: Mapping[str, str]) -> str | None:
    """Return the machine of this name. `machines`: words for each, which may begin with the vendor's own name."""
    asked = squashed(text)
    for name, words in machines.items():
        vendors = words.split(":")[0] if ":" in words else name
        if asked in map(squashed, (name, vendors, vendors.split(".")[0], name.replace("dgx", "hgx"))):
            return name
    return None


def cards_named(text: str, cards: Iterable[str]) -> list[str]:
    """Return the cards that `text` may mean: with every word of it, and no variant that it does not have."""
    words = _words(text)
    exact = [card for card in cards if squashed(card) == squashed("".join(words))]
    found = [card for card in cards if words and words <= {*_words(card), "".join(card.lower().split("-")[:2])}]
    plain = [card for card in found if _words(card) & _VARIANTS <= words]
    return exact or plain


def differ_in_memory_only(cards: Iterable[str]) -> bool:
    return len({re.sub(r"-\d+GB", "", card) for card in cards}) == 1


def _words(name: str) -> set[str]:
    parts = re.split(r"[^a-z0-9]+", _MEMORY.sub("gb", name.lower()))
    parts = [re.sub(r"(?<=\d)sxm\d?$", "", part) for part in parts]
    return {part for part in parts if part and part not in _SAY_NOTHING}
