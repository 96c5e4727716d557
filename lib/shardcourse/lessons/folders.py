"""Where the course lies, and where what its commands make is put. The course's own files may be read-only."""

import os
import shutil
from pathlib import Path

from platformdirs import user_cache_path

ROOT = Path(__file__).resolve().parents[3]


def build(name: str) -> Path:
    """`build/<name>` of the course; if that can't be written, as in a copy that many share, the user's cache has it."""
    folder = ROOT / "build" / name
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    return folder if os.access(nearest, os.W_OK | os.X_OK) else user_cache_path("shardlab") / name


def shown(path: Path) -> str:
    """As it can be typed from here."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def copy_files(source: Path, target: Path) -> None:
    """A folder's files into one that may be written, whatever may be done with the original."""
    for file in source.rglob("*"):
        if file.is_file() and file.parent.name != "__pycache__":
            (target / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / file.relative_to(source))
