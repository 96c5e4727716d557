"""Other courses by topic: `python -m shardcourse.peers` writes their table into course/README.md."""

import re
import tomllib
from pathlib import Path
from typing import Any

from shardcourse.repository import ROOT

FILE = Path(__file__).with_suffix(".toml")
README = ROOT / "course" / "README.md"
BLOCK = re.compile(r"(?<=<!-- `python -m shardcourse.peers` writes these lines -->\n\n).*?(?=\n\n<!-- end -->)", re.S)
WORDS = ("runs", "tells")
PAGES = {"all": "00_start_here.ipynb", "labs": "#six-weeks-with-labs", "train.py": "train.py"}


def load() -> dict[str, Any]:
    """Return `peers`, each with its name and places, and `topics`, each with its cells."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def block(found: dict[str, Any]) -> str:
    """Return the table, and what each peer is better for."""
    peers = found["peers"]
    head = ["topic", "here", *(f"[{peer['name']}]({peer['address']})" for peer in peers.values())]
    rows = [
        [topic["topic"], _ours(topic["ours"]), *(topic.get(key, "").partition(" ")[0] for key in peers)]
        for topic in found["topics"]
    ]
    table = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    better = [f"- [{peer['title']}]({peer['address']}): {peer['better_for']}." for peer in peers.values()]
    return "\n".join([*table, "", "What each of them is better for than this course:", "", *better])


def _ours(text: str) -> str:
    places = [word if word in WORDS else f"[{word}]({_page(word)})" for word in text.split()]
    return " ".join(places)


def _page(name: str) -> str:
    if name in PAGES:
        return PAGES[name]
    number, half = re.fullmatch(r"(\d+)([ab]?)", name).groups()
    (lesson,) = README.parent.glob(f"{int(number):02}{half}_*.ipynb")
    return lesson.name


if __name__ == "__main__":
    README.write_text(BLOCK.sub(lambda _: block(load()), README.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {README}")
