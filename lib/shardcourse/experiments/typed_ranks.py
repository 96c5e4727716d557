"""Lesson 24: put a program to the type checker without ranks, and run the same program on four ranks and on one.

A program is a function of a mesh with the axes "dp" and "tp". It makes its tensors with `put`, and returns a tensor
that all ranks should hold alike.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shardcourse.experiments.relative_error import relative_error
from shardlab import launch
from shardlab.measure.traffic import record_traffic

try:
    import spmd_types as spmd
    import spmd_types.checker  # noqa: F401  spmd.checker
except ImportError:
    spmd = None

Program = Callable[[DeviceMesh], Tensor]
AXES, SHAPE = ("dp", "tp"), (2, 2)
MISSING = "spmd_types is not installed: pip install 'spmd_types>=0.3.1,<0.4', and run the lesson again"
warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # spmd_types calls older names of torch's


@contextmanager
def fake_mesh() -> Iterator[DeviceMesh]:
    """Yield a mesh of 2 x 2 ranks, of which only rank 0 exists: its collectives return at once, and send nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    dist.init_process_group("fake", rank=0, world_size=SHAPE[0] * SHAPE[1], store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", SHAPE, mesh_dim_names=AXES)
        with spmd.set_current_mesh(mesh):
            yield mesh
    finally:
        dist.destroy_process_group()


def put(mesh: DeviceMesh, shape: tuple[int, ...], grad: bool = False, seed: int = 0, **types) -> Tensor:
    """Return this rank's part of a random float64 tensor. `types` has its type on each axis; S(i) cuts dimension i."""
    cuts = {axis: kind.dim for axis, kind in types.items() if isinstance(kind, spmd.Shard)}
    with spmd.no_typecheck():
        draw = torch.Generator().manual_seed(100 * seed + sum(shape))
        t = torch.randn(shape, dtype=torch.float64, generator=draw)
        for i, axis in enumerate(AXES):
            if axis in cuts:
                t = t.tensor_split(mesh.size(i), cuts[axis])[mesh.get_local_rank(i)]
        t = t.clone().requires_grad_(grad)
    if len(set(cuts.values())) < len(cuts):  # two axes cut the same dimension: no S(i) says that
        types |= dict.fromkeys(cuts, spmd.V)
    spmd.assert_type(t, types)
    return t


def gradient(t: Tensor) -> Tensor:
    """Return `t.grad` with its type, which follows from that of `t`: `.grad` itself carries none."""
    if spmd.is_type_checking():
        types = {axis: kind.backward_type() for axis, kind in spmd.get_local_type(t).items()}
        spmd.assert_type(t.grad, types, partition_spec=spmd.get_partition_spec(t))
    return t.grad


def check(program: Program, shards: bool = False) -> str:
    """Say whether the checker accepts a program. Without `shards`, S(i) means no more than V."""
    if spmd is None:
        return "not checked"
    with fake_mesh() as mesh, spmd.checker.typecheck(local=not shards):
        try:
            return f"accepted, {spmd.get_local_type(program(mesh))}".replace("mesh_", "")
        except spmd.SpmdTypeError as error:
            return f"refused: {_in_short(str(error))}"


def _in_short(words: str) -> str:
    """Return the first sentence of an error, and on a second line what to call instead."""
    words = words.replace("mesh_", "")
    cures = re.findall(r"Use reinterpret\([^)]*\)|Changing .*?dst=I\)|^ +(?:all_reduce|convert)\(.*$", words, re.M)
    cures.sort(key=lambda cure: "convert(" in cure)  # a reduction first
    first = words.splitlines()[0].split(". ")[0].split(" (")[0]
    return first + (f"\n         {cures[0].strip()}" if cures else "")


def run(programs: dict[str, Program]) -> dict[str, float]:
    """Return each result's largest relative difference, over four ranks, from the same program on one rank."""
    right = launch(_results, 1, programs, (1, 1), device="cpu")[0]
    ranks = launch(_results, 4, programs, SHAPE, device="cpu")
    return {name: max(relative_error(r[name], expected) for r in ranks) for name, expected in right.items()}


def _results(programs: dict[str, Program], shape: tuple[int, int]) -> dict[str, Tensor]:
    spmd.set_dist(_Distributed())
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
    with spmd.set_current_mesh(mesh):
        return {name: program(mesh).detach() for name, program in programs.items()}


class _Distributed:
    """torch.distributed, with an all_to_all of lists, which gloo of torch 2.11 lacks."""

    def __getattr__(self, name: str):
        return getattr(dist, name)

    @staticmethod
    def all_to_all(outputs: list[Tensor], inputs: list[Tensor], group: dist.ProcessGroup) -> None:
        received = torch.empty_like(torch.stack(outputs))
        dist.all_to_all_single(received, torch.stack(inputs), group=group)
        for output, part in zip(outputs, received, strict=True):
            output.copy_(part)


def messages(moves: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return which messages two ranks send in forward and in backward when a tensor goes from one type to another."""
    return launch(_messages, 2, moves, device="cpu")[0]


def _messages(moves: list[tuple[str, str]]) -> list[tuple[str, str]]:
    mesh, found = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)), []
    with spmd.set_current_mesh(mesh):
        for src, dst in moves:
            x = torch.ones(2, 2, requires_grad=True)
            with record_traffic() as forward:
                y = spmd.redistribute(x, "dp", src=getattr(spmd, src), dst=getattr(spmd, dst))
            with record_traffic() as backward:
                y.backward(torch.ones_like(y))
            there, back = (" ".join(c.kind for c in t.collectives) or "nothing" for t in (forward, backward))
            found.append((there, back))
    return found


def package_rules(combine: Callable[[str, str, bool], str], nonlinear: Callable[[str], str]) -> str:
    """Compare rules for sums, products and nonlinear operations with those of the package, for all types."""
    if spmd is None:
        return MISSING
    ours = [combine(a, b, product) for product in (False, True) for a in "RIVP" for b in "RIVP"]
    ours += [nonlinear(a) for a in "RIVP"]
    theirs = [_asked(op, a, b) for op in (torch.add, torch.mul) for a in "RIVP" for b in "RIVP"]
    theirs += [_asked(torch.relu, a) for a in "RIVP"]
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    return f"{equal} of {len(theirs)} rules are those of spmd_types"


def _asked(op: Callable[..., Tensor], *types: str) -> str:
    with fake_mesh() as mesh, spmd.checker.typecheck():
        try:
            y = op(*(put(mesh, (2,), dp=getattr(spmd, kind), tp=spmd.R) for kind in types))
        except spmd.SpmdTypeError:
            return "error"
        return spmd.get_axis_local_type(y, "dp").value
