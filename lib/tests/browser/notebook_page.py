"""A notebook in JupyterLab as a reader meets it: run its cells, look at outputs, work a widget's controls."""

import ast
import re
import time
from urllib.parse import urlsplit

READY = "() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
OPEN = "file => window.jupyterapp?.shell?.currentWidget?.context?.path === file"
CELLS = "() => jupyterapp.shell.currentWidget.content.widgets.map(cell => cell.model.toJSON())"
BEGIN = "() => { ended = false; jupyterapp.commands.execute('notebook:run-cell').then(() => { ended = true }) }"
COMMAND = "([name, args]) => jupyterapp.commands.execute(name, args)"


class NotebookPage:
    def __init__(self, chromium, url: str, file: str) -> None:
        self.url = url.replace("/lab?", f"/lab/tree/{file}?")
        self.page = chromium.new_page(viewport={"width": 1150, "height": 1000}, device_scale_factor=1)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.asked: set[str] = set()  # hosts
        self.page.on("request", lambda request: self.asked.add(urlsplit(request.url).hostname or ""))
        self.page.goto(self.url)
        self.page.wait_for_function(OPEN, arg=file, timeout=60_000)
        self.page.wait_for_function(READY, timeout=60_000)

    def command(self, name: str, **args) -> None:
        self.page.evaluate(COMMAND, [name, args])

    def run_all(self, within_s: float) -> None:
        self.command("notebook:run-all-cells")
        deadline = time.monotonic() + within_s
        while not all(cell["execution_count"] for cell in self.code_cells()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the notebook's cells are not through after {within_s:.0f} s")
            time.sleep(0.2)
        self.page.wait_for_function(READY, timeout=within_s * 1000)

    def execute(self, code: str) -> None:
        """In the notebook's kernel, out of any cell."""
        ask = "code => jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute({code}).done"
        reply = self.page.evaluate(f"code => ({ask})(code).then(reply => reply.content.status)", code)
        assert reply == "ok", code

    def value(self, code: str, expression: str) -> str:
        """Return what a string's expression is in the notebook's kernel, after this code and out of any cell."""
        content = {"code": code, "user_expressions": {"value": expression}}
        ask = "content => jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute(content).done"
        reply = self.page.evaluate(f"content => ({ask})(content).then(reply => reply.content)", content)
        assert reply["status"] == "ok", reply
        return ast.literal_eval(reply["user_expressions"]["value"]["data"]["text/plain"])

    def run_cell(self, grade_id: str) -> str:
        """What the cell puts out, errors included, as text without colours."""
        self.begin_cell(grade_id)
        return self.end_of_cell(grade_id)

    def begin_cell(self, grade_id: str) -> None:
        self.page.evaluate("i => { jupyterapp.shell.currentWidget.content.activeCellIndex = i }", self._index(grade_id))
        self.page.evaluate(BEGIN)

    def end_of_cell(self, grade_id: str) -> str:
        self.page.wait_for_function("() => ended", timeout=600_000)
        outputs = self.page.evaluate(CELLS)[self._index(grade_id)]["outputs"]
        text = "\n".join("".join(o.get("text", "")) + "\n".join(o.get("traceback", [])) for o in outputs)
        return re.sub(r"\x1b\[[\d;]*m", "", text)

    def write(self, grade_id: str, source: str) -> None:
        script = "([i, text]) => jupyterapp.shell.currentWidget.content.widgets[i].model.sharedModel.setSource(text)"
        self.page.evaluate(script, [self._index(grade_id), source])

    def _index(self, grade_id: str) -> int:
        cells = self.page.evaluate(CELLS)
        return next(i for i, c in enumerate(cells) if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)

    def code_cells(self) -> list[dict]:
        return [cell for cell in self.page.evaluate(CELLS) if cell["cell_type"] == "code"]

    def failures(self) -> list:
        """What cells raised, and scripts of the page."""
        outputs = [o for cell in self.code_cells() for o in cell["outputs"]]
        return [o for o in outputs if o["output_type"] == "error"] + self.errors

    def theme(self, name: str) -> None:
        self.command("apputils:change-theme", theme=name)
        is_light = str("Light" in name).lower()
        self.page.wait_for_selector(f'body[data-jp-theme-light="{is_light}"]', state="attached")
        time.sleep(0.5)  # its style sheet loads

    def pictures(self) -> list:
        return self.page.locator(".jp-OutputArea-output img").all()

    def output_below(self, title: str):
        """Of the code cell under this heading."""
        heading = self.page.locator(".jp-MarkdownCell", has_text=title).first
        return heading.locator("xpath=following-sibling::*[contains(@class, 'jp-CodeCell')][1]").locator(
            ".jp-Cell-outputArea"
        )

    def accessible_name(self, control) -> str:
        return control.evaluate("e => e.getAttribute('aria-label') || e.labels?.[0]?.innerText || e.innerText")

    def widget(self, title: str) -> "Widget":
        return Widget(self, self.output_below(title))

    def save_and_reopen_without_kernel(self) -> None:
        self.command("docmanager:save")
        self.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        self.page.reload()
        self.page.wait_for_selector(".jp-OutputArea-output img", timeout=60_000)


class Widget:
    def __init__(self, page: NotebookPage, output) -> None:
        self.page, self.output = page, output
        self._seen = self._source()

    def words(self, role: str = "status") -> str:
        found = self.output.get_by_role(role)
        return found.inner_text() if found.count() else ""

    def wait_for_words(self, text: str, within_s: float = 20, role: str = "status") -> None:
        deadline = time.monotonic() + within_s
        while text not in self.words(role):
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited for {text!r}; it says {self.words()!r}{self.words('alert')!r}")
            time.sleep(0.02)

    def choose(self, label: str, option: str) -> None:
        self.output.get_by_label(label, exact=True).select_option(option)

    def press(self, key: str) -> None:
        """On its first slider."""
        self.output.get_by_role("slider").first.focus()
        self.page.page.keyboard.press(key)

    def drag_slider_to(self, share: float) -> None:
        """Its handle, with the mouse, to this share of its track, and let go."""
        self.output.locator(".noUi-handle").scroll_into_view_if_needed()
        track = self.output.locator(".noUi-base").bounding_box()
        handle = self.output.locator(".noUi-handle").bounding_box()
        mouse = self.page.page.mouse
        mouse.move(handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2)
        mouse.down()
        mouse.move(track["x"] + share * track["width"], handle["y"] + handle["height"] / 2, steps=5)
        mouse.up()

    def picture_changed(self, within_s: float = 5) -> bool:
        """Since it was last asked, or the widget first seen."""
        deadline = time.monotonic() + within_s
        while (now := self._source()) == self._seen and time.monotonic() < deadline:
            time.sleep(0.05)
        changed, self._seen = now != self._seen, now
        return changed

    def _source(self) -> str:
        return self.output.locator("img").first.get_attribute("src")
