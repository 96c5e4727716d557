"""The schedule of FSDP: hooks around each unit's forward and backward that gather, free and reduce the unit.

[Note: the hooks]
    pre_forward     gather, wait; then begin to gather the units that the user named for prefetching
    post_forward    free, or keep until backward
    pre_backward    runs when backward reaches forward's outputs, or a tensor that forward kept on a module. Gather,
                    wait; then begin to gather the unit that backward enters next
    post_backward   runs when the gradients of forward's inputs are computed, the last that a unit's backward computes.
                    Free the parameters, and begin to reduce their gradients. If no input needs a gradient, as in the
                    first unit, there is no such hook, and the callback at backward's end does this

[Note: prefetch] Forward records the order of units, and backward enters them in about the reverse order. pre_backward
begins to gather the unit that ran before this one in forward, so that the message overlaps computation: two units are
whole at a time. In forward a GPU's host runs ahead, limited by `RateLimiter`; on a CPU the user names units.

[Note: recomputation] A forward may run inside a backward. If the unit's own backward is running, its parameters are
unsharded and stay so. Otherwise its backward comes next: forward gathers them and does not free them. An exception may
end such a forward early, so it changes nothing that a post_forward would have to undo.

Source: Zhao et al. 2023, sections 3.3 and 4.3; torch.distributed.fsdp._fully_shard._fsdp_state.
"""

from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from shardlab import backward_hooks, nested_tensors
from shardlab.freed_or_replaced_parameters import computed_while_sharded
from shardlab.fsdp.unit import State, Unit
from shardlab.rate_limiter import RateLimiter

_alive: WeakSet["Schedule"] = WeakSet()


class Schedule:
    """The units below one root, whose forward runs first, and the messages that they have under way."""

    def __init__(self, root: Unit, units: list[Unit]) -> None:
        self.root, self.units = root, units
        self.is_last_backward = True
        self.forward_order: list[Unit] = []  # units whose backward has not run yet, once for each call
        self.reductions: list[Iterator[None]] = []  # under way
        self.outermost: nn.Module | None = None  # the module whose forward runs and contains the others'
        self.watched: set[Unit] = set()  # units of several modules whose inputs have a hook in this forward already
        self.backward_runs = self.creates_graph = False
        self.entered: set[Unit] = set()  # units whose pre_backward has run in this backward
        self.unhooked: set[Unit] = set()  # units with no output to hook: they stay unsharded until backward
        self.limiter = RateLimiter(root.ranks.device)
        self.gather_stream = torch.get_device_module(root.ranks.device).Stream()
        for unit in units:
            unit.schedule, unit.gather_stream = self, self.gather_stream
        if root.reshard_after_forward is None:
            root.reshard_after_forward = False  # backward begins with it
        _alive.add(self)

    # Forward

    def pre_forward(self, unit: Unit, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if not backward_hooks.inside_backward():
            args, kwargs = self._begin_forward(unit, module, args, kwargs)
        if unit.mp_policy.cast_forward_inputs:
            args, kwargs = nested_tensors.cast(unit.mp_policy.param_dtype, (args, kwargs))
        self._unshard(unit)
        unit.wait_for_unshard()
        if unit.in_backward:
            return args, kwargs
        if not backward_hooks.inside_backward():
            for other in unit.forward_prefetch:
                self._unshard(other)
        return self._watch_inputs(unit, args, kwargs)

    def post_forward(self, unit: Unit, module: nn.Module, output: Any) -> Any:
        output = nested_tensors.cast(unit.mp_policy.output_dtype, output)
        if unit.in_backward:
            return output
        if torch.is_grad_enabled():
            self._watch_outputs(unit, output)
        if not backward_hooks.inside_backward():
            if unit not in (*self.forward_order[-1:], *self.unhooked):
                self.forward_order.append(unit)
            if len(unit.modules) == 1:
                self._reshard_after_forward(unit)
            if module is self.outermost:
                self._end_forward()
        return output

    def _watch_outputs(self, unit: Unit, output: Any) -> None:
        returned = nested_tensors.with_gradient_anywhere(output)
        for t in returned + nested_tensors.kept_with_gradient(unit.inside, unit.first_node):
            backward_hooks.before_backward(t, backward_hooks.while_alive(self.pre_backward, unit))
        if not returned and torch.autograd._get_sequence_nr() > unit.first_node:  # its forward made a graph
            self.unhooked.add(unit)

    def _begin_forward(self, unit: Unit, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if self.outermost not in (None, module):  # module: an exception ended its last forward
            return args, kwargs
        self.outermost = module
        if torch.is_grad_enabled():  # else an evaluation between a forward and its backward
            self.unhooked.clear()
        if self.backward_runs:
            self._forget_backward()
        device = unit.ranks.device
        self.gather_stream.wait_stream(torch.get_device_module(device).current_stream())  # after the optimizer's step
        if device.type == "cpu":
            return args, kwargs
        return nested_tensors.map_tensors(lambda t: t.to(device, non_blocking=True), (args, kwargs))

    def _end_forward(self) -> None:
        """Free what no backward will free. For a unit of several modules, only now is the last call known."""
        self.outermost = None
        self.watched.clear()
        for unit in self.units:
            if not torch.is_grad_enabled() and unit not in self.unhooked and not self.creates_graph:
                self._reshard(unit)
            elif len(unit.modules) > 1:
                self._reshard_after_forward(unit)
        if not torch.is_grad_enabled():
            self.forward_order.clear()

    def _watch_inputs(self, unit: Unit, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if not torch.is_grad_enabled() or unit in self.watched:
            return args, kwargs
        if len(unit.modules) > 1 and not backward_hooks.inside_backward():
            self.watched.add(unit)  # its backward ends when it has left the module that forward entered first
        watched = backward_hooks.after_backward((args, kwargs), backward_hooks.while_alive(self.post_backward, unit))
        unit.first_node = torch.autograd._get_sequence_nr()
        return watched

    # Backward

    def pre_backward(self, unit: Unit) -> None:
        if unit.in_backward:
            return
        unit.in_backward = True
        self.entered.add(unit)
        self._backward_begins()
        self._unshard(unit)
        unit.wait_for_unshard()
        for other in unit.backward_prefetch or self._next_in_backward(unit):
            self._unshard(other)

    def _backward_begins(self) -> None:
        if not self.backward_runs:
            self.backward_runs, self.creates_graph = True, self.creates_graph or torch.is_grad_enabled()
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_done)

    def gradient_came(self, unit: Unit, name: str) -> None:
        """Register backward's callback, also if backward entered the unit through a tensor without a hook of ours.

        Raises RuntimeError if the unit was sharded then: what backward computed from its parameters is wrong.
        """
        if unit not in self.entered:
            if unit.state is not State.UNSHARDED:
                computed_while_sharded(name)
            self._backward_begins()

    @torch.no_grad()
    def post_backward(self, unit: Unit) -> None:
        """Free the unit's parameters, and begin to reduce their gradients. Calling it again does nothing.

        It frees the unit's parameters and the last messages' buffers before it allocates memory for new messages.
        """
        unit.in_backward = False
        gradients = unit.take_gradients() if unit.requires_gradient_sync else []
        if not unit.requires_gradient_sync:
            unit.keep_gradients()
        if unit.reshard_after_backward and not self.creates_graph:  # else another backward may follow
            self._reshard(unit)
        if gradients:
            self.reductions = _advanced(self.reductions)
        for layout, by_param in gradients:
            self.reductions += _advanced([unit.reduce(layout, by_param)])

    def _next_in_backward(self, unit: Unit) -> list[Unit]:
        if unit not in self.forward_order:
            return []
        i = len(self.forward_order) - 1 - self.forward_order[::-1].index(unit)
        del self.forward_order[i]
        return self.forward_order[i - 1 : i]

    def _backward_done(self) -> None:
        self.creates_graph = torch.is_grad_enabled()
        for unit in self.units:
            self.post_backward(unit)
        if self.is_last_backward:
            while self.reductions:  # each ends after one message on a 1-D mesh, after two on a 2-D mesh
                self.reductions = _advanced(self.reductions)
            self.forward_order.clear()
        self.backward_runs, self.entered, self.unhooked = False, set(), set()

    def _forget_backward(self) -> None:
        """Clean up after a backward that an exception ended; gradients that it has not reduced are lost."""
        self.backward_runs = self.creates_graph = False
        self.entered.clear()
        self.reductions.clear()
        self.forward_order.clear()
        for unit in self.units:
            unit.in_backward = False
            unit.forget_gradients()
            self._reshard(unit)

    def _unshard(self, unit: Unit) -> None:
        if unit.state is State.SHARDED:
            self.limiter.wait()
            unit.unshard()

    def _reshard(self, unit: Unit) -> None:
        if unit.state is not State.SHARDED:
            unit.reshard()
            self.limiter.freed()

    def _reshard_after_forward(self, unit: Unit) -> None:
        if unit.reshard_after_forward is not False and unit not in self.unhooked and not self.creates_graph:
            self._reshard(unit)


@torch.no_grad()
def _advanced(reductions: list[Iterator[None]]) -> list[Iterator[None]]:
    """Run each reduction to its next wait for a message; return those that have not ended."""
    return [reduction for reduction in reductions if next(reduction, reductions) is None]  # it yields None


def _before_step(optimizer: torch.optim.Optimizer, *_) -> None:
    """Reshard before an optimizer changes shards: whole parameters that a forward left would be out of date."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for schedule in _alive if not backward_hooks.inside_backward() else ():
        for unit in schedule.units:
            if any(id(shard) in stepped for layout in unit.layouts for shard in layout.sharded_params):
                schedule._reshard(unit)
                schedule.creates_graph = False


register_optimizer_step_pre_hook(_before_step)
