"""`unit_states`: which units are whole on this rank at each moment of a training step."""

from collections.abc import Sequence

from torch import nn

from shardcourse.experiments.measured_step import my_batch
from shardlab.fsdp.unit import State

SIGNS = {State.SHARDED: ".", State.GATHERING: "+", State.UNSHARDED: "#"}


def unit_states(model: nn.Module, blocks: Sequence[nn.Module]) -> dict[str, str]:
    """Return {moment: a sign for the root and for each block}: "." sharded, "+" being gathered, "#" whole.

    `model` and `blocks` are units of `shardlab.fsdp.fully_shard`. Runs two steps and returns the second one's states.
    """
    seen: dict[str, str] = {}
    inputs = my_batch()

    def look(moment: str) -> None:
        seen[moment] = " ".join(SIGNS[unit._fsdp_unit.state] for unit in (model, *blocks))

    handles = []
    for i, block in enumerate(blocks):
        inner = next(block.children())  # its hooks run inside the block's own
        handles.append(inner.register_forward_pre_hook(lambda *_, i=i: look(f"forward of block {i}")))
        handles.append(inner.register_full_backward_hook(lambda *_, i=i: look(f"backward of block {i}")))
    for _ in range(2):
        look("before the step")
        loss = model(*inputs)
        look("after forward")
        loss.backward()
        look("after backward")
    for handle in handles:
        handle.remove()
    return seen
