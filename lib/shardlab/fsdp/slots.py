"""Places of a unit's parameters in the model, and the whole parameters that autograd sees there."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from shardlab.fsdp.freed import FreedParameter


@dataclass(eq=False)
class Slot:
    """A parameter and its places in the modules: several if it is tied."""

    name: str  # from the unit's module on; from the root on, once that is known
    param: nn.Parameter | None  # the original, until it is sharded
    unit_module: nn.Module
    places: list[tuple[nn.Module, str]] = field(default_factory=list)

    def put(self, param: nn.Parameter) -> None:
        for module, name in self.places:
            module._parameters[name] = param  # as setattr does, without its checks

    def remove(self) -> None:
        for module, name in self.places:
            module._parameters.pop(name, None)

    @property
    def current(self) -> nn.Parameter:
        module, name = self.places[0]
        return module._parameters[name]


class Unsharded:
    """A whole parameter, in its own shape, and its gradient over any number of backwards.

    See [Note: lifetime] in `per_parameter`: `param` is one object for ever, while its memory comes and goes.
    """

    def __init__(self, slot: Slot, memory: Tensor, shape: torch.Size, requires_grad: bool) -> None:
        self.slot = slot
        self.param = nn.Parameter(memory.data[: shape.numel()].view(shape), requires_grad)
        self.param.slot = slot  # for whoever uses it when its memory is free
        self.kept: Tensor | None = None  # the gradient in reduce_dtype, of backwards that did not reduce it

    def use(self, requires_grad: bool) -> None:
        """`requires_grad`: as the optimizer's side of it has been set meanwhile."""
        self.param.__class__ = nn.Parameter
        self.param.requires_grad = requires_grad
        self.slot.put(self.param)

    def free(self) -> None:
        self.param.__class__ = FreedParameter

    def keep_gradient(self, reduce_dtype: torch.dtype | None) -> None:
        """Keep the gradient in `reduce_dtype` until a backward reduces it. In its own dtype, autograd keeps it."""
        gradient = self.param.grad
        if gradient is not None and reduce_dtype not in (None, gradient.dtype):
            self.kept = gradient.to(reduce_dtype) if self.kept is None else self.kept.add_(gradient)
            self.param.grad = None

    def take_gradient(self) -> Tensor | None:
        gradient, self.param.grad = self.param.grad, None
        kept, self.kept = self.kept, None
        if kept is None or gradient is None:
            return gradient if kept is None else kept
        return kept.add_(gradient)


def modules_of(root: nn.Module, units: type, children_first: bool) -> Iterator[tuple[str, nn.Module]]:
    """(name, module): root and what is below it, without other `units`."""

    def walk(name: str, module: nn.Module):
        seen.add(module)
        if not children_first:
            yield name, module
        for child_name, child in module.named_children():
            if child not in seen and not isinstance(child, units):
                yield from walk(f"{name}.{child_name}".lstrip("."), child)
        if children_first:
            yield name, module

    seen: set[nn.Module] = set()
    yield from walk("", root)


def slots_of(modules: list[tuple[str, nn.Module]], ignored: set[nn.Parameter], unit_module: nn.Module) -> list[Slot]:
    slots: dict[nn.Parameter, Slot] = {}
    for module_name, module in modules:
        for name, p in module._parameters.items():
            if p is not None and p not in ignored:
                slot = slots.setdefault(p, Slot(f"{module_name}.{name}".lstrip("."), p, unit_module))
                slot.places.append((module, name))
    return list(slots.values())


def call_hooks(sharded: nn.Parameter) -> None:
    """Call post-accumulate hooks, as autograd does, for gradients that autograd did not make."""
    for hook in (sharded._post_accumulate_grad_hooks or {}).values():
        hook(sharded)
