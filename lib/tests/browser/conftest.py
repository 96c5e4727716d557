"""A course as somebody has it who uses it, and its JupyterLab as `make lab` starts it."""

from pathlib import Path

import pytest
from course_copy import ROOT, copy_course
from lab import MissingBrowser, browser, check_installed, jupyterlab

PARTS = ("course", "labs", "solutions", "grading/nbgrader_config.py", "grading/labconfig")


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """What git has of the notebooks, in a folder with spaces and letters that are not ASCII."""
    folder = tmp_path_factory.mktemp("first hour") / "Kurs für Ærø"
    copy_course(folder, *PARTS)
    return folder


@pytest.fixture(scope="module")
def chromium():
    """A headless browser. Where there is none, everything ends here, with what to install."""
    try:
        check_installed()
    except MissingBrowser as missing:
        pytest.exit(str(missing), returncode=1)
    with browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def server(chromium, course, tmp_path_factory):
    """The browser, and the address of a JupyterLab of the course."""
    with jupyterlab(tmp_path_factory.mktemp("lab"), course) as url:
        yield chromium, url


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where what was seen is kept, to be looked at."""
    folder = ROOT / "build" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
