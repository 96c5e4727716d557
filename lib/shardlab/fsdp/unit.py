"""A unit: the state of its parameters in memory, and the messages that change this state.

`schedule` decides when. Every collective begins with async_op=True, and is waited for as late as possible. With gloo a
worker thread runs it; with NCCL, a stream of its own.

[Note: streams and memory] On a GPU the host runs ahead and queues all work on streams. all_gathers are queued on the
`gather_stream`: they wait for the optimizer's step, but not for the computation queued before them. `work.wait()` makes
the computation's stream wait for NCCL's, not the host. Memory belongs to the stream on which it was allocated. The
allocator reuses it there as soon as Python drops it, even if the computation's stream has not read it yet:
`record_stream` tells the allocator about that reader. Gradients' buffers, on the computation's stream, need none of it.

Source: torch.distributed.fsdp._fully_shard._fsdp_param_group; Zhao et al. 2023, section 3.3.
"""

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.profiler import record_function

from shardlab.freed_or_replaced_parameters import refuse_writes
from shardlab.fsdp.param import Param
from shardlab.shard_groups import Ranks, all_gather, divide_factors, reduce_scatter

Gradients = dict[int, Tensor]  # whole gradients, by the parameter's position in its layout


class Layout(Protocol):
    """Layout of parameters that are sent in one message: `param` has FSDP2's, `flat_parameter` FSDP1's."""

    children_first: ClassVar[bool]  # the order of parameters in a unit
    params: list[Param]
    sharded_params: list[nn.Parameter]  # the parameters that the optimizer sees
    groups: Callable[[list[Param]], list[list[Param]]]  # the parameters of a unit, by message

    def __init__(self, params: list[Param], ranks: Ranks, param_dtype: torch.dtype | None, on_cpu: bool) -> None: ...
    def put_sharded(self) -> None: ...
    def refresh(self) -> None: ...
    def all_gather_tensors(self) -> tuple[Tensor, Tensor]: ...
    def use(self, output: Tensor | None) -> None: ...
    def free(self) -> None: ...
    def reduce_scatter_input(self, gradients: Gradients, dtype: torch.dtype) -> Tensor: ...
    def take_reduced_gradients(self, used: list[int], shard: Tensor) -> None: ...


class State(Enum):
    SHARDED = auto()  # the modules hold sharded parameters; nothing else is in memory
    GATHERING = auto()  # an all_gather is under way
    UNSHARDED = auto()  # the modules hold whole parameters


class Unit:
    """The parameters of `modules` that are gathered, freed and reduced together."""

    def __init__(
        self,
        modules: list[nn.Module],
        inside: list[nn.Module],
        layouts: list[Layout],
        ranks: Ranks,
        mp_policy: MixedPrecisionPolicy,
        reshard_after_forward: bool | None,
    ) -> None:
        self.name = ""  # path below the root; empty for the root itself
        self.modules, self.layouts, self.ranks, self.mp_policy = modules, layouts, ranks, mp_policy
        self.inside = inside  # the modules and all below them, without those of other units
        self.reshard_after_forward, self.reshard_after_backward = reshard_after_forward, True
        self.requires_gradient_sync = self.requires_all_reduce = True
        self.forward_prefetch: list[Unit] = []
        self.backward_prefetch: list[Unit] = []
        self.state = State.SHARDED
        self.in_backward = False  # between pre_backward and post_backward
        self.first_node = 0  # number of the last forward's first node in autograd's graph
        self._gathering: list[tuple] = []  # for each layout: its all_gather's work, output and input
        self._partial: dict[Layout, Tensor] = {}  # shards not all_reduced yet; see set_requires_all_reduce
        self.schedule = None  # its root's schedule, once the root is known
        self.gather_stream = torch.get_device_module(ranks.device).current_stream()

    def enter(self, names: dict[nn.Module, str]) -> None:
        """Set the names that the unit and its parameters have in the whole model, and the parameters' callback."""
        self.name = names[next(m for m in self.modules if m in names)]
        for p in (p for layout in self.layouts for p in layout.params):
            known = [f"{names[module]}.{name}".lstrip(".") for module, name in p.places if module in names]
            p.name = known[0] if known else p.name
            p.gradient_came = lambda p: self.schedule.gradient_came(self, p.name)

    def unshard(self) -> None:
        """Begin to gather the whole parameters. Sends: (N-1)/N of the unit's padded bytes in param_dtype."""
        if self.state is not State.SHARDED:
            return
        stream = torch.get_device_module(self.ranks.device).stream(self.gather_stream)
        with torch.inference_mode(False), torch.no_grad(), stream:
            self._gathering = [self._all_gather(layout) for layout in self.layouts]
        self.state = State.GATHERING

    def _all_gather(self, layout: Layout) -> tuple[dist.Work | None, Tensor | None, Tensor | None]:
        if self.ranks.shard_size == 1:
            return None, None, None
        output, input = layout.all_gather_tensors()
        with self._label("all_gather"):
            return all_gather(output.view(-1), input, group=self.ranks.shard_group, async_op=True), output, input

    def wait_for_unshard(self) -> None:
        """Wait for the all_gather, and put whole parameters on the modules, if `unshard` was called before."""
        if self.state is not State.GATHERING:
            return
        gathering, self._gathering, self.state = self._gathering[::-1], [], State.SHARDED  # also if a gather fails
        with torch.inference_mode(False), torch.no_grad():  # training may use memory that an evaluation allocated
            for layout in self.layouts:
                work, output, input = gathering.pop()
                if work is not None:
                    work.wait()
                    for t in (output, input) if output.device.type != "cpu" else ():  # [Note: streams and memory]
                        t.record_stream(torch.get_device_module(t.device).current_stream())
                layout.use(output)
        self.state = State.UNSHARDED

    def reshard(self) -> None:
        """Free the whole parameters. Wait for a gather that is under way: it can't be cancelled."""
        self.wait_for_unshard()
        if self.state is State.UNSHARDED:
            for layout in self.layouts:
                layout.free()
                layout.put_sharded()
            self.state = State.SHARDED
            refuse_writes(p for layout in self.layouts for p in layout.params)

    def refresh(self) -> None:
        self.reshard()
        for layout in self.layouts:
            layout.refresh()

    @torch.no_grad()
    def keep_gradients(self) -> None:
        """Keep whole gradients, N S elements, without communication, and add them up in reduce_dtype."""
        for p in (p for layout in self.layouts for p in layout.params):
            p.keep_gradient(self.mp_policy.reduce_dtype)

    def take_gradients(self) -> list[tuple[Layout, Gradients]]:
        """Return the whole gradients of each layout that has any; the caller frees them."""
        taken = [(layout, [p.take_gradient() for p in layout.params]) for layout in self.layouts]
        by_position = [(layout, {i: g for i, g in enumerate(found) if g is not None}) for layout, found in taken]
        return [(layout, gradients) for layout, gradients in by_position if gradients]

    def forget_gradients(self) -> None:
        """Drop the gradients of a backward that an exception ended, and those that wait for an all_reduce."""
        self.take_gradients()
        self._partial.clear()

    def reduce(self, layout: Layout, gradients: Gradients) -> Iterator[None]:
        """Add this rank's shard of the mean of all ranks' gradients to the sharded parameters' `.grad`.

        A generator: it yields when a message is under way, so that the caller can compute meanwhile, and then waits for
        the message. `gradients` is emptied as soon as it is copied.

        Sends: (N-1)/N of the unit's padded bytes in reduce_dtype; with R replicas, also 2 (R-1)/R of 1/N of them.
        """
        dtype = self.mp_policy.reduce_dtype or next(iter(gradients.values())).dtype
        before, after, mean = divide_factors(self.ranks, dtype)
        all_reduce_too = self.requires_all_reduce  # as set when this backward ran
        used, rows = list(gradients), layout.reduce_scatter_input(gradients, dtype)
        gradients.clear()
        rows.div_(before) if before != 1 else None
        shard = rows[0]
        if self.ranks.shard_size > 1:
            shard = torch.empty_like(rows[0])
            with self._label("post_backward_reduce"):
                work = reduce_scatter(shard, rows.view(-1), op=mean, group=self.ranks.shard_group, async_op=True)
            yield
            work.wait()
        del rows
        if self.ranks.replicate_group is not None:
            shard = shard.add_(self._partial.pop(layout)) if layout in self._partial else shard
            if not all_reduce_too:
                self._partial[layout] = shard
                return
            if self.ranks.replicate_size > 1:
                with self._label("post_backward_reduce"):
                    work = dist.all_reduce(shard, op=mean, group=self.ranks.replicate_group, async_op=True)
                yield
                work.wait()
        shard.div_(after) if after != 1 else None
        layout.take_reduced_gradients(used, shard)

    def _label(self, what: str) -> record_function:
        """Return the label of the work in a profile, as FSDP2 writes it."""
        return record_function(f"FSDP::{what} ({self.name})")
