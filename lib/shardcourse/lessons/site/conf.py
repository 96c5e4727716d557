"""Sphinx's configuration of the book. Neither building nor reading the book needs the web."""

import sys
import tomllib
from pathlib import Path

from shardcourse.repository import ROOT

sys.path.insert(0, str(Path(__file__).parent))

project = "shardlab"
author = "the shardlab authors"
copyright = "the shardlab authors, MIT licence"  # noqa: A001
language = "en"

extensions = ["myst_nb", "mathml"]
html_math_renderer = "mathml"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # `make course` has executed them
nb_merge_streams = True  # what a cell prints in several messages stands in one box
nb_render_markdown_format = "gfm"  # with tables
nb_ipywidgets_js = {}  # a widget needs a kernel: the page shows its picture instead
suppress_warnings = ["myst.header"]  # a cell may begin with ### because the heading above it is in another cell

html_theme = "sphinx_book_theme"
html_title = "shardlab"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_show_sphinx = False
html_theme_options = {"show_toc_level": 2, "home_page_in_toc": True, "navbar_persistent": []}
html_context = {"default_mode": "auto"}  # light or dark, like the reader's system

# With an address in pyproject.toml, `[project.urls] Repository = "https://github.com/..."`, each lesson's page leads to
# hosts where a reader can run it.
urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
if "Repository" in urls:
    html_theme_options |= {
        "repository_url": urls["Repository"],
        "repository_branch": "main",
        "use_repository_button": True,
        "launch_buttons": {
            "colab_url": "https://colab.research.google.com",
            "binderhub_url": "https://mybinder.org",
            "notebook_interface": "jupyterlab",
        },
    }
