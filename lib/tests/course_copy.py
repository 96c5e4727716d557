"""The course as somebody has it who got it from us: what git has, and nothing that was made here."""

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MADE = {".git", ".venv", "build", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis"}


def files(*parts: str) -> list[str]:
    """Below `parts`, or all; where there is no clone, all but what is usually made."""
    git = ["git", "ls-files", "-z", *parts]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(git, cwd=ROOT, text=True, stderr=subprocess.DEVNULL).split("\0")[:-1]
    found = (p.relative_to(ROOT) for p in ROOT.rglob("*") if p.is_file())
    ours = (p for p in found if not MADE & set(p.parts))
    return [str(p) for p in ours if not parts or any(p.is_relative_to(part) for part in parts)]


def copy_course(folder: Path, *parts: str) -> None:
    for name in files(*parts):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
