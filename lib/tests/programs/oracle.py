"""What a program must give: what one process gives, or an error of ours whose cause is in the program."""

import gc
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from programs.draw import Program, draw
from programs.engines import ENGINES, alone, around_limits
from programs.models import Net
from programs.refusals import REFUSALS, check_blame, ours
from programs.run import Run, assert_gone
from shardlab.state import full_state_dict

CLOSE = {"rtol": 1e-8, "atol": 1e-10}


def compare(program: Program, name: str) -> str:
    """On a rank: run a program on an engine and alone. Return the error by which the engine refused it, or ''.

    Raises AssertionError if it did something else than one process, and whatever else came up.
    """
    program = around_limits(program, name)
    expected = Run(program, alone, ranks=0)
    if not program.sparse:  # which every engine refuses
        expected.go()
    names = [name for name, _ in expected.model.named_parameters() if "signs" in name]
    may_say = expected.may_say | {f"{name} or its gradient is sparse" for name in names}
    may_say |= {"in one flat parameter they would be lost"} if any(spec.mark for spec in program.specs) else set()
    try:
        found = Run(program, ENGINES[name], ranks=dist.get_world_size())
        found.go()
    except REFUSALS as error:
        if not ours(error):
            raise
        check_blame(error, may_say)
        return str(error)
    for i, (a, b) in enumerate(zip(found.seen, expected.seen, strict=True)):
        assert torch.allclose(a, b, **CLOSE), f"number {i} of what was seen is {a}, not {b}"
    check_weights(full_state_dict(found.model), expected.model)
    if found.averaged is not None:
        check_weights(full_state_dict(found.averaged), expected.averaged)
    assert_gone(found.forget())
    return ""


def check_weights(state: dict[str, Tensor], expected: nn.Module) -> None:
    if not dist.get_rank():
        assert state.keys() == expected.state_dict().keys(), f"names: {sorted(state)}"
        for name, value in expected.state_dict().items():
            assert torch.allclose(state[name], value, **CLOSE), f"{name} is {state[name]}, not {value}"


def live_bytes() -> int:
    """Bytes of all tensors that this process holds."""
    gc.collect()
    tensors = [t for t in gc.get_objects() if type(t) in (Tensor, nn.Parameter)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def bytes_after(program: Program, name: str) -> int:
    compare(program, name)
    return live_bytes()


def many(name: str, seeds: list[int], progress: str) -> None:
    """On a rank: compare the programs of these seeds, until the engine refuses one.

    `progress`: a file to which rank 0 writes the seed that it has begun.
    """
    gc.collect()
    gc.freeze()  # what is there stays: the many collections that follow need not look at it
    for seed in seeds:
        if not dist.get_rank():
            Path(progress).write_text(str(seed))
        program = draw(seed)
        if words := compare(program, name):
            raise Refused(words)
        if seed % 20 == 0 and not Net(program.specs, program.tied).keeps_itself:
            held = [bytes_after(program, name) for _ in range(4)]
            assert any(a >= b for a, b in pairwise(held)), f"more and more bytes stay: {held}"


class Refused(Exception):
    """An engine refused a program by an error of its own, which is allowed; its ranks can't go on."""
