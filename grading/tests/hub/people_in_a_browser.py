"""People on the hub, each with a browser of their own: they log in, and use JupyterLab's and nbgrader's buttons."""

import json
from pathlib import Path

from class_on_a_hub import LAB, PASSWORD, HubClass
from deadlines import deadline_s
from notebook_page import NotebookPage

FILE = f"{LAB}/{LAB}.ipynb"
_VIEW = {"width": 1150, "height": 1000}
_STARTED = "() => window.jupyterapp?.restored?.then(() => true)"


class Person:
    """A user of the hub who has logged in, and whose server runs."""

    def __init__(self, chromium, people: HubClass, name: str) -> None:
        self.name, self.url = name, f"{people.url}/user/{name}"
        self.context = chromium.new_context(viewport=_VIEW)
        self.context.set_default_timeout(deadline_s(30) * 1000)
        page = self.context.new_page()
        page.goto(people.url)
        page.get_by_label("Username").fill(name)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{self.url}/**", timeout=deadline_s(60) * 1000)
        page.close()

    def new_page(self, **_):
        """Return a new page of this person, as `NotebookPage` asks a browser for one."""
        return self.context.new_page()

    def notebook(self) -> NotebookPage:
        return NotebookPage(self, f"{self.url}/lab?", FILE)

    def assignments(self):
        """Return nbgrader's list of assignments, a page of JupyterLab."""
        page = self.new_page()
        page.goto(f"{self.url}/lab?reset")
        page.wait_for_function(_STARTED)
        page.get_by_role("menuitem", name="Nbgrader").click()
        page.get_by_role("menuitem", name="Assignment List").click()
        page.get_by_text("Submitted assignments", exact=True).wait_for()
        return page

    def fetch(self) -> None:
        page = self.assignments()
        page.get_by_role("button", name="Fetch", exact=True).click()
        page.get_by_role("button", name="Submit", exact=True).wait_for()
        page.close()

    def write(self, cells: dict[str, str]) -> NotebookPage:
        """Open the lab, put these sources into it by grade id, and save it."""
        notebook = self.notebook()
        for grade_id, source in cells.items():
            notebook.write(grade_id, source)
        notebook.command("docmanager:save")
        return notebook

    def submit(self, picture: Path) -> None:
        page = self.assignments()
        page.get_by_role("button", name="Submit", exact=True).click()
        page.get_by_role("button", name="Fetch Feedback").wait_for()
        page.screenshot(path=picture)
        page.close()

    def fetch_feedback(self) -> str:
        """Press the button, and return the folder of the pages, as nbgrader's server names it."""
        page = self.assignments()
        with page.expect_response("**/assignments/fetch_feedback*") as fetched:
            page.get_by_role("button", name="Fetch Feedback").click()
        page.get_by_text("(view feedback)").wait_for()
        (lab,) = [found for found in fetched.value.json()["value"] if found["status"] == "submitted"]
        page.close()
        return lab["submissions"][-1]["local_feedback_path"]

    def attempt(self, notebook: NotebookPage, lines: dict[str, str]) -> dict[str, str]:
        """Run lines of Python in a kernel of their server. Return how each ended: "done", or an error's name."""
        code = f"""
import json, os, shutil, sqlite3, sys
from pathlib import Path
ended = {{}}
for name, line in {lines!r}.items():
    try:
        exec(line)
        ended[name] = "done"
    except Exception as error:
        ended[name] = type(error).__name__
"""
        return json.loads(notebook.value(code, "json.dumps(ended)"))
