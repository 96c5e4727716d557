"""What the widgets have in common: controls, what they come to in words, and a figure.

[Note: without a kernel] The figure is an output of its own, a PNG below the controls, and so part of the notebook like
any other picture: GitHub, nbconvert and JupyterLab show it when there is nobody to answer the controls. Whenever it
changes, the notebook's copy changes with it. (One output that holds widget and PNG as alternatives would be simpler.
But JupyterLab picks the widget even where its model is gone, and shows an error instead of the picture.)

[Note: for everybody] Each control has a label and is worked by keyboard. A slider of ipywidgets has no name that a
screen reader could tell, and says its position rather than its value; so there is a list beside it that has both. The
words say what the picture shows, and are read out when they change; they are its text form in the notebook, too.
"""

import base64
from collections.abc import Iterable
from html import escape

import ipywidgets
from IPython.display import DisplayHandle, display
from matplotlib.figure import Figure
from traitlets import link


class Pane(ipywidgets.VBox):
    """Controls and words; the figure below them. `show` replaces words and figure."""

    def __init__(self, name: str, controls: Iterable[ipywidgets.Widget]) -> None:
        self.name, self.message = name, ""
        self.figure: Figure | None = None
        self._pictures: list[DisplayHandle] = []
        self._words = ipywidgets.HTML()
        row = ipywidgets.HBox(list(controls), layout={"flex_flow": "row wrap", "grid_gap": "4px 20px"})
        super().__init__([row, self._words])

    def show(self, figure: Figure, message: str) -> None:
        """Replace both. `figure` is one of `shardcourse.figures`; `message` says in a sentence or two what it shows."""
        self.figure = figure
        self.say(message)
        for picture in self._pictures:
            self._draw(picture.update)

    def say(self, message: str, *, problem: bool = False) -> None:
        """The words alone. A problem is read out at once, and set off by more than a colour."""
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
    """A labelled list to choose from."""
    return ipywidgets.Dropdown(
        description=label,
        options=list(options),
        value=value,
        style={"description_width": "initial"},
        layout={"width": "max-content"},
    )


def slider(named: ipywidgets.Dropdown, width: str = "300px") -> ipywidgets.HBox:
    """The list with a slider in front of it, over the same options, which tells its value when it is released."""
    track = ipywidgets.SelectionSlider(
        options=named.options, continuous_update=False, readout=False, layout={"width": width}
    )
    track.index = named.index
    link((track, "index"), (named, "index"))
    return ipywidgets.HBox([named, track])
