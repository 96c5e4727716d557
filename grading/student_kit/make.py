"""Make the folder that students get: copies of what is theirs, and a record in place of our answers."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from grading.judge.reference_lookup import RECORDED
from grading.student_kit.record_reference_results import record

ROOT = Path(__file__).resolve().parents[2]
FILES = Path(__file__).with_name("files")  # of the kit alone
WHOLE = ("course", "labs", "lib")
OF_GRADING = ("__init__.py", "student", "judge", "boxes", "checks")
AT_THE_TOP = ("LICENSE", "LICENSE-prose.md", "constraints.txt", "environment.yml", ".gitignore")
LEFT_OUT = ("lib/tests",)
LEFT_OUT_NAMES = re.compile(r"__pycache__|.*\.egg-info|\.ipynb_checkpoints|rule_coverage\.toml|\..*_cache")


class KitError(ValueError):
    """Says what to do."""


def make_kit(out: Path, seeds: list[int], show: Callable[[str], None] = print, root: Path = ROOT) -> None:
    """Write the kit into the folder `out`, which must not exist or be empty. KitError if it can't be made."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise KitError(f"{out} is there already, and not empty: name a new folder")
    labs = sorted(place.name for place in (root / "solutions").iterdir() if place.is_dir())
    if missing := [lab for lab in labs if not (root / "labs" / lab / f"{lab}.ipynb").is_file()]:
        raise KitError(f"not released yet: {', '.join(missing)}. Call `shardlab release` first")
    out.mkdir(parents=True, exist_ok=True)
    for path in files_of_students(root):
        target = out / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for path in filter(Path.is_file, FILES.rglob("*")):
        shutil.copyfile(path, out / path.relative_to(FILES))
    (out / "pyproject.toml").write_text(_pyproject((root / "pyproject.toml").read_text()))
    environment = out / "environment.yml"
    environment.write_text(environment.read_text().replace("-e .[dev]", "-e ."))
    recorded = out / RECORDED.relative_to(ROOT)
    recorded.mkdir(parents=True)
    for lab in labs:
        record(lab, seeds, recorded, show)
    _wheel(out, show)
    _repository(out)
    show(f"{out}: {sum(path.is_file() for path in out.rglob('*') if '.git' not in path.parts)} files")


def files_of_students(root: Path) -> Iterator[Path]:
    """Yield the files that students get as they are."""
    places = [root / name for name in (*WHOLE, *AT_THE_TOP)] + [root / "grading" / name for name in OF_GRADING]
    committed = _committed(root)
    for place in places:
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            relative = path.relative_to(root)
            if committed and str(relative) not in committed:
                continue
            if path.is_symlink() or not path.is_file() or any(map(LEFT_OUT_NAMES.fullmatch, relative.parts)):
                continue
            if not any(relative.is_relative_to(out) for out in LEFT_OUT):
                yield path


def _committed(root: Path) -> set[str]:
    """Return what git has of the course, so that nothing else that lies about is given away; empty without git."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    return set() if done.returncode else set(filter(None, done.stdout.split("\0")))


def _pyproject(text: str) -> str:
    """Return the project's file without settings of tools that work on the project, and with the records."""
    kept = [part for part in re.split(r"(?m)^(?=\[)", text) if not re.match(r"\[+tool\.(?!setuptools)", part)]
    before, data, after = "".join(kept).partition("\ngrading = [")
    assert data, "pyproject.toml names no data of grading"
    return f'{before}{data}"recorded/*.json.xz", {after.rstrip()}\n'


def _wheel(out: Path, show: Callable[[str], None]) -> None:
    """Build a wheel of the library and of what `check` needs, for those who have an environment of their own."""
    show("a wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", "."]
    done = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KitError(f"the wheel could not be built: {done.stderr.strip()[-500:]}")
    for left in (out / "build", *out.rglob("*.egg-info")):
        shutil.rmtree(left)


def _repository(out: Path) -> None:
    """Make a git repository of one commit, so that a student sees what they changed, and the next kit can follow."""
    author = ["-c", "user.name=shardlab", "-c", "user.email=shardlab@localhost"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "The course, as released"]):
        subprocess.run(["git", *author, *command], cwd=out, check=True, capture_output=True)
