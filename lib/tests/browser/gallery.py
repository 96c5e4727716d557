"""The notebook that is looked at: every figure and every widget, each in a cell of its own."""

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PATHS = "import sys; sys.path.insert(0, {tests!r})"

FIGURES = """
import cloudpickle, example_figures
from IPython.display import Markdown, display
cloudpickle.register_pickle_by_value(example_figures)
for name, figure in example_figures.examples().items():
    display(Markdown(f"### {name}"), figure)
"""

BUCKET_SLIDER = """
from torch.nn.parallel import DistributedDataParallel
import torch
from example_figures import CONFIG, FORWARD_S, LINK, predicted_step_s
from shardlab.model import Transformer
from shardcourse.widgets import BucketSlider
from shardcourse.widgets.bucket_slider import on_ranks
from shardsim.slept_computation import sleep_in
from shardsim import simulated

def make_step(cap_mb):
    model = Transformer(CONFIG)
    for block in model.blocks:
        sleep_in(block, FORWARD_S)
    ddp = DistributedDataParallel(model, bucket_cap_mb=cap_mb, gradient_as_bucket_view=True)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    return lambda: ddp(tokens, tokens).backward()

predicted_s = {cap: predicted_step_s(cap) for cap in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)}
levels_s = {"computation alone": 3 * FORWARD_S * CONFIG.n_layers}
buckets = BucketSlider(on_ranks(make_step, 4, network=simulated(LINK)), predicted_s, first_mb=2, levels_s=levels_s)
buckets
"""

PLANNER = "from shardcourse.widgets import Planner\nplanner = Planner()\nplanner"
SHARDING = "from shardcourse.widgets import ShardingExplorer\nshards = ShardingExplorer()\nshards"
WIDGETS = {"planner": PLANNER, "bucket slider": BUCKET_SLIDER, "sharding explorer": SHARDING}


def notebook(figures: bool, tests: str) -> nbformat.NotebookNode:
    """With `figures`, also those of tests/example_figures.py. A cell's title is the text of the one above it."""
    cells = {"paths": PATHS.format(tests=tests)} | ({"figures": FIGURES} if figures else {}) | WIDGETS
    nb = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
    for title, source in cells.items():
        nb.cells += [new_markdown_cell(f"## {title}"), new_code_cell(source.strip())]
    return nb
