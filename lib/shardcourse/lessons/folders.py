"""The course's folder, and the folders for the output of its commands. The course's own files may be read-only."""

import os
import shutil
from pathlib import Path

from platformdirs import user_cache_path

from shardcourse.repository import ROOT


def build(name: str) -> Path:
    """Return the course's `build/<name>`, or a folder in the user's cache if the course is read-only."""
    folder = ROOT / "build" / name
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    return folder if os.access(nearest, os.W_OK | os.X_OK) else user_cache_path("shardlab") / name


def shown(path: Path) -> str:
    """Return the path as the user can type it in the current folder."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def copy_files(source: Path, target: Path) -> None:
    """Copy a folder's files into a writable folder, even if the originals are read-only."""
    for file in source.rglob("*"):
        if file.is_file() and file.parent.name != "__pycache__":
            (target / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / file.relative_to(source))
