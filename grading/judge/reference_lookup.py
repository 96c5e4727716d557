"""What a judge may ask of our own answers, by name: it knows no other way to them.

`OurAnswers` computes it. `RecordedAnswers` has it for a few seeds, recorded when a kit was made, so that a student's
home does without the answers.
"""

import hashlib
import importlib
import importlib.util
import json
import lzma
import secrets
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).resolve().parents[1] / "recorded"
N_SEEDS = 10_000  # that a grading draws from


class NotRecorded(LookupError):
    """The kit has no answer to this problem."""


class OurAnswers:
    """The functions of a lab's package in `grading.references`; `module` None: the lab has none."""

    def __init__(self, module: str | None) -> None:
        self._module = module
        self._known: dict[str, Any] = {}

    def draw_seed(self) -> int:
        return secrets.randbelow(N_SEEDS)

    def solve(self, name: str, *arguments) -> Any:
        """Return what the function `name` returns for these arguments. Both are what JSON can hold."""
        key = key_of(name, *arguments)
        if key not in self._known:
            self._known[key] = getattr(importlib.import_module(self._module), name)(*arguments)
        return self._known[key]

    def replies(self, drill: str, arguments: dict) -> list | None:
        """Return what the reference's ranks reply to a drill, if they need not be asked."""
        return None

    def pace(self, drill: str, arguments: dict) -> float:
        """Return our answer's time over that of the ranks that stand in for it in a race."""
        return 1.0


class RecordedAnswers(OurAnswers):
    """The same from a file: `seeds`, and by key what was `solved`, `replies` of ranks, and `paces` of races."""

    def __init__(self, seeds: list[int], solved: dict, replies: dict, paces: dict) -> None:
        super().__init__(None)
        self.seeds, self._solved, self._replies, self._paces = seeds, solved, replies, paces

    def draw_seed(self) -> int:
        return secrets.choice(self.seeds)

    def solve(self, name: str, *arguments) -> Any:
        key = key_of(name, *arguments)
        if key not in self._solved:
            raise NotRecorded(f"{name}: this kit has no result for what was drawn")
        return self._solved[key]

    def replies(self, drill: str, arguments: dict) -> list | None:
        return self._replies.get(key_of(drill, arguments))

    def pace(self, drill: str, arguments: dict) -> float:
        return self._paces.get(key_of(drill, arguments), 1.0)


def key_of(*what) -> str:
    """Return a short name for what JSON can hold: equal for equal values, and no hint of them."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:20]


def answers_for(lab: str) -> tuple[OurAnswers, str | None]:
    """Return the lab's answers, and the name of their module for the reference's ranks; None where there is none."""
    module = f"grading.references.{lab}"
    if importlib.util.find_spec("grading.references") and importlib.util.find_spec(module):
        return OurAnswers(module), module
    file = RECORDED / f"{lab}.json.xz"
    if file.is_file():
        return RecordedAnswers(**json.loads(lzma.decompress(file.read_bytes()))), None
    return OurAnswers(None), None


def write(lab: str, folder: Path, **recorded) -> None:
    """Write what `RecordedAnswers` reads."""
    text = json.dumps(recorded, separators=(",", ":"))
    (folder / f"{lab}.json.xz").write_bytes(lzma.compress(text.encode()))
