"""Plant each mistake of mutants.toml in a copy of the project, and see which test catches it.

    python lib/tests/mutants.py                     every mistake, before the quick tests that belong to it
    python lib/tests/mutants.py DDP pack            those whose place contains one of these words
    python lib/tests/mutants.py --json build/m.json write the results down, too
    python lib/tests/mutants.py --programs          only those that the suite of programs must find by itself

A mistake names the definition that it changes by its dotted name (`DDP.forward`, or `ddp.DDP.forward` where the name
alone could mean two), so that it survives a move of the file. A mistake that no test catches, or that can't be planted
any more, makes the exit status 1.
"""

import argparse
import ast
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[2]
QUICK = re.compile(r"^QUICK := (.*)$", re.MULTILINE)
PROGRAMS = (3000, 180)  # the first seed, and how many programs on each engine must be enough
ONE_TEST_S = 240  # a mistake that makes a test hang is caught by the test's time-out


@dataclass
class Mutant:
    place: str  # dotted name of a function, class or module-level constant, as short as is unique
    old: str  # occurs exactly once in the source of that definition
    new: str
    tests: list[str]  # test files, by name without .py: the quick ones that belong to it
    programs: list[str] = field(default_factory=list)  # engines on which programs drawn by chance find it


@dataclass
class Outcome:
    place: str
    new: str
    caught_by: str  # node id of the first test that failed, or "" if none did
    seconds: float


def planted(root: Path) -> list[Mutant]:
    entries = tomllib.loads((root / "lib" / "tests" / "mutants.toml").read_text())["mutant"]
    return [Mutant(m["in"], m["old"], m["new"], m["tests"], m.get("programs", [])) for m in entries]


def sources(root: Path) -> list[Path]:
    """Modules of the packages, without their tests and the samples, and the course's own script."""
    folders = [p for p in (root / "lib").iterdir() if (p / "__init__.py").exists()] + [root / "grading"]
    found = [p for folder in [*folders, root / "course"] for p in sorted(folder.rglob("*.py"))]
    return [p for p in found if not {"tests", "samples", "attacks"} & set(p.relative_to(root).parts)]


def definitions(path: Path, root: Path) -> dict[str, tuple[int, int]]:
    """Dotted name of each definition in a module -> first and last line, counted from 1, decorators included."""
    module = [part for part in path.relative_to(root).with_suffix("").parts if part not in ("lib", "__init__")]
    found = {}

    def walk(node: ast.AST, names: list[str]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                found.setdefault(".".join([*names, child.name]), (first, child.end_lineno))
                walk(child, [*names, child.name])
            elif isinstance(child, ast.Assign | ast.AnnAssign):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(".".join([*names, target.id]), (child.lineno, child.end_lineno))
            else:
                walk(child, names)

    walk(ast.parse(path.read_text()), module)
    return found


@functools.cache
def all_definitions(root: Path) -> list[tuple[Path, str, tuple[int, int]]]:
    return [(path, *found) for path in sources(root) for found in definitions(path, root).items()]


def locate(mutant: Mutant, root: Path) -> tuple[Path, str]:
    """The file that the mistake changes, and what stands in it then. Raises LookupError, saying what does not fit."""
    found = [d for d in all_definitions(root) if d[1] == mutant.place or d[1].endswith("." + mutant.place)]
    if len(found) != 1:
        names = ", ".join(name for _, name, _ in found) or "nothing"
        raise LookupError(f"{mutant.place!r} names {names}: name exactly one definition")
    path, _, (first, last) = found[0]
    lines = path.read_text().splitlines(keepends=True)
    segment = "".join(lines[first - 1 : last])
    if segment.count(mutant.old) != 1:
        raise LookupError(f"{mutant.place!r}: {mutant.old!r} occurs {segment.count(mutant.old)} times in it, not once")
    changed = "".join(lines[: first - 1]) + segment.replace(mutant.old, mutant.new) + "".join(lines[last:])
    ast.parse(changed)
    return path.relative_to(root), changed


def test_files(stems: list[str], root: Path) -> list[str]:
    """Raises LookupError for a name that no test file has."""
    known = {p.stem: str(p.relative_to(root)) for p in root.glob("*/tests/**/test_*.py")}
    missing = [stem for stem in stems if stem not in known]
    if missing:
        raise LookupError(f"no test file is called {', '.join(missing)}")
    return [known[stem] for stem in stems]


def unplantable(mutants: list[Mutant], root: Path) -> list[str]:
    """Why, of each that can't be planted or has no tests."""
    found = []
    for mutant in mutants:
        try:
            locate(mutant, root)
            test_files(mutant.tests, root)
        except (LookupError, SyntaxError) as error:
            found.append(str(error) if mutant.place in str(error) else f"{mutant.place!r}: {error}")
    return found


def copy_project(root: Path, folder: Path) -> None:
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=root, text=True).split("\0")[:-1]
    for name in names:
        if (root / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)  # some tests ask git what there is
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)


def try_out(mutant: Mutant, copy: Path, marks: str) -> Outcome:
    """Plant the mistake in the copy, run the tests that belong to it until one fails, and take it out again."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=line", "-m", marks]
    with is_planted(mutant, copy):
        done = run([*command, f"--timeout={ONE_TEST_S}", *test_files(mutant.tests, copy)], copy)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1, 2) and not failed:
        failed = [f"(pytest ended with {done.returncode})"]
    return Outcome(mutant.place, mutant.new, failed[0] if failed else "", round(time.monotonic() - began, 1))


@contextmanager
def is_planted(mutant: Mutant, copy: Path) -> Iterator[None]:
    """Plant the mistake in the copy for as long as the context lasts."""
    path, changed = locate(mutant, copy)
    sound = (copy / path).read_text()
    try:
        (copy / path).write_text(changed)
        yield
    finally:
        (copy / path).write_text(sound)


def run(command: list[str], copy: Path) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": f"{copy / 'lib'}{os.pathsep}{copy}"}
    return subprocess.run(command, cwd=copy, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def try_programs(mutant: Mutant, copy: Path, _marks: str) -> Outcome:
    """Plant the mistake in the copy, and run programs on its engines, 60 on each in turn, until one finds it."""
    began, first, number = time.monotonic(), *PROGRAMS
    command = [sys.executable, "lib/tests/lab/test_programs.py", "--most", "1"]
    with is_planted(mutant, copy):
        for start, engine in itertools.product(range(first, first + number, 60), mutant.programs):
            done = run([*command, str(start), str(start + 60), engine], copy)
            if found := re.findall(r"^(.+, program \d+): ", done.stdout, re.MULTILINE):
                return Outcome(mutant.place, mutant.new, found[0], round(time.monotonic() - began, 1))
            if f"{engine}: 0 findings" not in done.stdout:
                raise RuntimeError(f"{mutant.place}: the programs did not run: {done.stderr}")
    return Outcome(mutant.place, mutant.new, "", round(time.monotonic() - began, 1))


def try_out_all(mutants: list[Mutant], root: Path, marks: str, jobs: int, trial=try_out) -> list[Outcome]:
    """Each in a copy, `jobs` at a time; says how each ended."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: Queue[Path] = Queue()
        for job in range(jobs):
            copy_project(root, Path(folder, str(job)))
            copies.put(Path(folder, str(job)))

        def one(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                outcome = trial(mutant, copy, marks)
            finally:
                copies.put(copy)
            print(f"{outcome.seconds:6.1f} s  {outcome.place}: {outcome.caught_by or 'NOT CAUGHT'}", flush=True)
            return outcome

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, mutants))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only mistakes whose place contains one of these")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--marks", default=QUICK.search((ROOT / "Makefile").read_text())[1])
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--programs", action="store_true", help="let the programs of test_programs.py alone find each")
    parser.add_argument("--check", action="store_true", help="only see whether each mistake can be planted")
    arguments = parser.parse_args()
    words = arguments.words or [""]
    mutants = [m for m in planted(ROOT) if any(word in m.place for word in words)]
    mutants = [m for m in mutants if m.programs or not arguments.programs]
    bad = unplantable(mutants, ROOT)
    for why in bad:
        print(f"can't be planted: {why}")
    if bad or arguments.check:
        print(f"{len(mutants)} mistakes, {len(bad)} can't be planted")
        return bool(bad)

    trial = try_programs if arguments.programs else try_out
    outcomes = try_out_all(mutants, ROOT, arguments.marks, arguments.jobs, trial)
    caught = sum(bool(outcome.caught_by) for outcome in outcomes)
    print(f"{caught} passed, {len(outcomes) - caught} failed")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    return caught < len(outcomes)


if __name__ == "__main__":
    sys.exit(main())
