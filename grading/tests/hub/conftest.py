"""A class on a real hub, and its people in a real browser."""

from collections.abc import Callable

import pytest
from class_on_a_hub import class_on_a_hub
from course_copy import ROOT
from lab import browser
from people_in_a_browser import Person


@pytest.fixture(scope="module")
def people():
    with class_on_a_hub() as people:
        yield people


@pytest.fixture(scope="module")
def log_in(people) -> Callable[[str], Person]:
    """log_in(name): this user in a browser, the same whenever asked."""
    known: dict[str, Person] = {}
    with browser() as chromium:

        def logged_in(name: str) -> Person:
            if name not in known:
                known[name] = Person(chromium, people, name)
            return known[name]

        yield logged_in


@pytest.fixture(scope="session")
def picture() -> Callable:
    """picture(name): where it is kept, to be looked at."""
    folder = ROOT / "build" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    return lambda name: folder / f"hub-{name}.png"
