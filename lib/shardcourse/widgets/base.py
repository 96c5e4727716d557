"""The common base of the widgets: controls, a message in words, and a figure.

[Note: without a kernel] The figure is a separate output, a PNG below the controls. It is stored in the notebook like
any other picture, so GitHub, nbconvert and JupyterLab show it without a kernel. When it changes, so does the stored
copy. (One output with widget and PNG as alternatives would be simpler. But JupyterLab picks the widget even if
its model is gone, and shows an error instead of the picture.)

[Note: for everybody] Each control has a label and works by keyboard. A slider of ipywidgets has no name for a screen
reader, and gives its position instead of its value. Therefore each slider has a list next to it, which has both. The
message says what the picture shows. Screen readers read it when it changes, and it is the picture's text form too.
"""

import base64
from collections.abc import Iterable
from html import escape

import ipywidgets
from IPython.display import DisplayHandle, display
from matplotlib.figure import Figure
from traitlets import link


class Pane(ipywidgets.VBox):
    """A widget: controls and a message, with a figure below. `show` replaces message and figure."""

    def __init__(self, name: str, controls: Iterable[ipywidgets.Widget]) -> None:
        self.name, self.message = name, ""
        self.figure: Figure | None = None
        self._pictures: list[DisplayHandle] = []
        self._words = ipywidgets.HTML()
        row = ipywidgets.HBox(list(controls), layout={"flex_flow": "row wrap", "grid_gap": "4px 20px"})
        super().__init__([row, self._words])

    def show(self, figure: Figure, message: str) -> None:
        """Replace figure (one of `shardcourse.figures`) and message (what it shows, in a sentence or two)."""
        self.figure = figure
        self.say(message)
        for picture in self._pictures:
            self._draw(picture.update)

    def say(self, message: str, *, problem: bool = False) -> None:
        """Replace the message alone. A problem is read out at once, and marked by more than a colour."""
        self.message = message
        role, style = ("alert", "border-left: 4px solid; padding-left: 8px") if problem else ("status", "")
        body = escape(message).replace("\n", "<br>")
        self._words.value = f'<div role="{role}" style="line-height: 1.5; max-width: 760px; {style}">{body}</div>'

    def _ipython_display_(self) -> None:
        display(self._repr_mimebundle_(), raw=True)
        picture = DisplayHandle()
        self._draw(picture.display)
        self._pictures.append(picture)

    def _draw(self, put) -> None:
        png, size = self.figure._repr_png_()
        words = f"{self.name}. {self.message}"
        data = {"image/png": base64.b64encode(png).decode(), "text/plain": words}
        put(data, raw=True, metadata={"image/png": size | {"alt": words}})


def choice(label: str, options: Iterable, value) -> ipywidgets.Dropdown:
    """Return a labelled list of options."""
    return ipywidgets.Dropdown(
        description=label,
        options=list(options),
        value=value,
        style={"description_width": "initial"},
        layout={"width": "max-content"},
    )


def slider(named: ipywidgets.Dropdown, width: str = "300px") -> ipywidgets.HBox:
    """Return the list with a slider next to it over the same options. The slider sets its value when it is released."""
    track = ipywidgets.SelectionSlider(
        options=named.options, continuous_update=False, readout=False, layout={"width": width}
    )
    track.index = named.index
    link((track, "index"), (named, "index"))
    return ipywidgets.HBox([named, track])
