"""Find the clone: the course's notebooks, training script and records lie in it, outside every package."""

from pathlib import Path

HERE = Path(__file__).resolve().parents[2]  # an installed copy has its packages elsewhere, and no course beside them


def is_clone(place: Path) -> bool:
    """Return whether the course lies in this folder."""
    return (place / "course" / "00_start_here.ipynb").is_file()


def _clone() -> Path:
    """Return the clone that this file is in; for an installed copy, the one in or above the current folder."""
    current = Path.cwd()
    return next(filter(is_clone, (HERE, current, *current.parents)), current)


ROOT = _clone()
