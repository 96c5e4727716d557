"""Tensor parallelism with torch, as lesson 15a writes it. Lesson 15b imports it. A test compares the two texts."""

from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

BY_COLUMNS = ("attention.query", "attention.key", "attention.value", "feed_forward.gate", "feed_forward.up")
BY_ROWS = ("attention.out", "feed_forward.down")
WHOLE = Replicate()


def cut_blocks(model, mesh, between=WHOLE):
    for block in model.blocks:
        plan = {name: ColwiseParallel() for name in BY_COLUMNS}
        plan |= {name: RowwiseParallel(output_layouts=between) for name in BY_ROWS}
        parallelize_module(block, mesh, plan)


def enter_once(model, mesh, between=WHOLE):
    attention = {"input_layouts": (between, None, None), "desired_input_layouts": (WHOLE, None, None)}
    feed_forward = {"input_layouts": (between,), "desired_input_layouts": (WHOLE,)}
    for block in model.blocks:
        plan = {"attention": PrepareModuleInput(**attention), "feed_forward": PrepareModuleInput(**feed_forward)}
        parallelize_module(block, mesh, plan)
