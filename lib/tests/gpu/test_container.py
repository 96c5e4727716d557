"""The container's recipe installs what a GPU node's programs start, as root, before it becomes a student."""

import re

import pytest
from course_copy import ROOT

RECIPE = (ROOT / "lib" / "cluster" / "Containerfile").read_text()
NEEDED = {
    "bubblewrap": "boxes",
    "g++": "Inductor, for what it runs on CPUs; brings the C library's headers",
    "gcc": "Triton, for the launcher of each kernel",
    "git": "make setup",
    "make": "make setup",
}


def installed(recipe: str) -> set[str]:
    """Debian packages that the recipe installs while it is root and the lists of packages are there."""
    as_root = recipe.split("\nUSER ")[0].replace("\\\n", " ")
    runs = [line for line in as_root.splitlines() if line.startswith("RUN apt-get update")]
    named = [re.search(r"apt-get install (.*?)(&&|$)", run) for run in runs]
    return {word for found in named for word in found[1].split() if not word.startswith("-")}


def test_everything_that_is_started_is_installed():
    assert installed(RECIPE) == set(NEEDED)


@pytest.mark.parametrize("package", NEEDED)
def test_a_package_that_is_missing_or_comes_too_late_is_found(package):
    without = re.sub(rf"(install .*?) {re.escape(package)}(?= )", r"\1", RECIPE, count=1)
    assert package not in installed(without)
    assert package not in installed(without + f"\nRUN apt-get update && apt-get install -y {package}\n")
