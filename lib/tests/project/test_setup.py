"""The files that say what a set-up installs agree with each other, and `make` has every target that the README names.

Each rule is a function from texts to a list of problems, so that the tests can also plant a mistake and see it found.
"""

import re
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
import yaml
from course_copy import ROOT
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from shardcourse.lessons.book import BOOK

NAMES = ["pyproject.toml", "constraints.txt", "environment.yml", "Makefile"]
PYTHONS = [f"3.{minor}" for minor in range(30)]


def pins(constraints: str) -> tuple[dict[str, Version], list[str]]:
    """Name -> pinned version, and the lines that are no plain, single `name==version`."""
    found, problems = {}, []
    for line in constraints.splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9][A-Za-z0-9.]*)", line)
        name = canonicalize_name(match[1]) if match else None
        if name is None or name in found:
            problems.append(f"constraints.txt: not one plain pin: {line}")
        else:
            found[name] = Version(match[2])
    return found, problems


def pin_problems(texts: dict[str, str]) -> list[str]:
    """Every dependency in pyproject.toml has a pin, within its range."""
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    pinned, problems = pins(texts["constraints.txt"])
    if canonicalize_name(project["name"]) in pinned:
        problems.append(f"constraints.txt: pins {project['name']} itself")
    for line in [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]:
        wanted = Requirement(line)
        pin = pinned.get(canonicalize_name(wanted.name))
        if pin is None:
            problems.append(f"constraints.txt: no pin for {line}")
        elif pin not in wanted.specifier:
            problems.append(f"constraints.txt: {wanted.name}=={pin} is outside {line}")
    return problems


def environment_problems(texts: dict[str, str]) -> list[str]:
    """environment.yml installs this package, under the constraints, and pins nothing on its own."""
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    pinned, _ = pins(texts["constraints.txt"])
    entries = yaml.safe_load(texts["environment.yml"])["dependencies"]
    from_conda = [e for e in entries if isinstance(e, str)]
    from_pip = [line for e in entries if isinstance(e, dict) for line in e["pip"]]

    problems = []
    if "-c constraints.txt" not in from_pip:
        problems.append("environment.yml: pip runs without -c constraints.txt")
    editable = [m for line in from_pip if (m := re.fullmatch(r"-e \.(?:\[([\w,-]+)\])?", line))]
    if len(editable) != 1:
        problems.append("environment.yml: does not install this package once, as -e .")
    for match in editable:
        unknown = set(filter(None, (match[1] or "").split(","))) - set(project["optional-dependencies"])
        problems += [f"environment.yml: pyproject.toml has no extra {extra}" for extra in unknown]
    for entry in from_conda:
        if canonicalize_name(re.match(r"[\w.-]+", entry)[0]) in pinned:
            problems.append(f"environment.yml: conda's {entry} would stand beside pip's")
    for line in from_pip:
        if line.startswith(("-c ", "-e ")):
            continue
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            problems.append(f"environment.yml: neither -c, -e nor a requirement: {line}")
            continue
        pin = pinned.get(canonicalize_name(wanted.name))
        if pin is not None and pin not in wanted.specifier:
            problems.append(f"environment.yml: {line} contradicts the pin {pin}")
    return problems


def python_problems(texts: dict[str, str]) -> list[str]:
    """pyproject.toml, the Makefile and environment.yml agree on the oldest Python; conda gets no unsupported one."""
    supported = SpecifierSet(tomllib.loads(texts["pyproject.toml"])["project"]["requires-python"])
    entries = yaml.safe_load(texts["environment.yml"])["dependencies"]
    conda_specs = [re.sub(r"^python\b\s*", "", e) for e in entries if isinstance(e, str) and re.match(r"python\b", e)]
    make_minimum = re.search(r"sys\.version_info < \((\d+), (\d+)\)", texts["Makefile"])

    oldest = next(v for v in PYTHONS if v in supported)
    problems = []
    if not make_minimum or ".".join(make_minimum.groups()) != oldest:
        problems.append(f"Makefile: does not refuse a Python older than {oldest}")
    admitted = [v for v in PYTHONS if conda_specs and v in SpecifierSet(conda_specs[0])]
    if len(conda_specs) != 1 or not admitted:
        return [*problems, "environment.yml: names no Python"]
    if admitted[0] != oldest:
        problems.append(f"environment.yml: the oldest Python is {admitted[0]}, in pyproject.toml {oldest}")
    return problems + [f"environment.yml: Python {v} is not in {supported}" for v in admitted if v not in supported]


def make_words(markdown: str) -> set[str]:
    """The targets in a text's code: `make X Y VAR=z` in backticks or in a fenced block, outside comments."""
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", markdown, flags=re.DOTALL))
    commands = re.findall(r"(?:^|[\s`$;&|(])make((?:[ \t]+[\w./=-]+)+)", re.sub(r"#.*", "", code))
    return {word for c in commands for word in c.split() if "=" not in word and not word.startswith("-")}


def ci_targets(script: str) -> set[str]:
    return set(re.findall(r"^ *part ([a-z]+)", script, flags=re.MULTILINE))


def too_new(constraints: str, python: str) -> list[str]:
    """Pins that this Python may not install. What is not installed here can't be asked, and is left out."""
    found = []
    for name, version in pins(constraints)[0].items():
        with suppress(PackageNotFoundError):
            needs = metadata(name).get("Requires-Python", "")
            if python not in SpecifierSet(needs):
                found.append(f"constraints.txt: {name}=={version} needs Python {needs}")
    return found


def target_problems(makefile: str, words: set[str]) -> list[str]:
    targets = set(re.findall(r"^([\w-]+):(?!=)", makefile, flags=re.MULTILINE))
    return [f"Makefile: no target {word}" for word in sorted(words - targets)]


@pytest.fixture
def texts() -> dict[str, str]:
    return {name: (ROOT / name).read_text() for name in NAMES}


RULES = [pin_problems, environment_problems, python_problems]


@pytest.mark.parametrize("rule", RULES)
def test_the_files_agree(rule, texts):
    assert rule(texts) == []


MISTAKES = [
    # rule, file, a pattern that is there once, what a slip would put in its place
    (pin_problems, "pyproject.toml", r'"numpy>=', '"nosuchpackage", "numpy>='),
    (pin_problems, "pyproject.toml", r'"torch>=', '"torch>=99,>='),
    (pin_problems, "pyproject.toml", r'"ruff>=', '"ruff>=99,>='),
    (pin_problems, "constraints.txt", r"^torch==.*\n", ""),
    (pin_problems, "constraints.txt", r"^(torch==.*)", r"\1+cpu"),
    (pin_problems, "constraints.txt", r"^torch==", "torch>="),
    (pin_problems, "constraints.txt", r"^(torch==.*)", r"\1\n\1"),
    (pin_problems, "constraints.txt", r"^(torch==.*)", r"\1\n-e ."),
    (pin_problems, "constraints.txt", r"^(torch==.*)", r"\1\nshardlab==0.1.0"),
    (environment_problems, "environment.yml", r"-c constraints.txt", "-c pins.txt"),
    (environment_problems, "environment.yml", r"-e \.\[dev\]", "shardlab"),
    (environment_problems, "environment.yml", r"-e \.\[dev\]", "-e .[devel]"),
    (environment_problems, "environment.yml", r"-e \.\[dev\]", "-e .[dev]\n      - torch==1.0"),
    (environment_problems, "environment.yml", r"- pip$", "- pip\n  - numpy"),
    (python_problems, "environment.yml", r"python>=3\.\d+", "python>=3.8"),
    (python_problems, "environment.yml", r"python>=3\.\d+", "python>=3.12"),
    (python_problems, "environment.yml", r"^ *- python>=.*\n", ""),
    (python_problems, "pyproject.toml", r"^requires-python = .*", 'requires-python = ">=3.12"'),
    (python_problems, "Makefile", r"< \(3, \d+\)", "< (3, 8)"),
]


@pytest.mark.parametrize(("rule", "name", "there", "slip"), MISTAKES)
def test_a_planted_mistake_is_found(rule, name, there, slip, texts):
    mistaken, count = re.subn(there, slip, texts[name], flags=re.MULTILINE)
    assert count == 1
    assert rule(texts | {name: mistaken}) != []


def test_make_has_every_target_that_is_promised(texts):
    readme = ROOT / "README.md"
    words = make_words(readme.read_text()) if readme.exists() else set()
    assert target_problems(texts["Makefile"], words) == []
    assert {"demo", "test"} <= words or not readme.exists(), "the README's two commands are `make demo` and `make test`"
    ci_words = ci_targets((ROOT / ".ci" / "run").read_text())
    assert {"lint", "demo", "test", "lessons", "slice"} <= ci_words
    assert target_problems(texts["Makefile"], ci_words) == []


def test_every_target_of_make_is_phony_and_listed_by_help(texts):
    targets = set(re.findall(r"^([a-z]+):", texts["Makefile"], flags=re.MULTILINE))
    listed = set(re.findall(r"^([a-z]+):.*## ", texts["Makefile"], flags=re.MULTILINE))
    phony = set(re.search(r"^\.PHONY:(.*)", texts["Makefile"], flags=re.MULTILINE)[1].split())
    assert targets == listed == phony


def test_make_words_are_read_from_code_only():
    text = """Please make sure. `make demo`, then `make grade LAB=lab1` and `make -j2 lint test`.
```
$ make course   # make sure there is time
cd x && make bench
```
"""
    assert make_words(text) == {"demo", "grade", "lint", "test", "course", "bench"}
    assert target_problems("demo: setup\nX := 1\n", {"demo", "X", "gone"}) == [
        "Makefile: no target X",
        "Makefile: no target gone",
    ]


def test_every_pin_is_there_for_the_first_python_3_11(texts):
    """Debian 12 has 3.11.2, and a package may ask for 3.11.5."""
    assert too_new(texts["constraints.txt"], "3.11.0") == []
    assert "constraints.txt: torch==1.0 needs Python" in too_new("torch==1.0", "3.5.0")[0]


def test_ci_makes_what_it_calls_a_part():
    assert ci_targets("part demo\n    part test tests\n# part of it\npart() {\n") == {"demo", "test"}


def test_the_workflow_runs_what_is_there():
    """It was held against GitHub's schema of workflows; here its commands are those of this repository."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "course.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands == [".ci/run", "make book"]
    assert re.search(r"^book:", (ROOT / "Makefile").read_text(), re.M)
    (uploaded,) = [step for step in jobs["book"]["steps"] if "upload-pages" in step.get("uses", "")]
    assert BOOK.relative_to(ROOT) / "html" == Path(uploaded["with"]["path"])
