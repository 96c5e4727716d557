"""`checkpoint`: drop what a call saves for backward, and repeat the call when backward needs it."""

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import record_function
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointError, noop_context_fn
from torch.utils.checkpoint import checkpoint as torchs_checkpoint

CPU = torch.device("cpu")


def checkpoint(
    function: Callable,
    *args,
    use_reentrant: bool,
    preserve_rng_state: bool = True,
    context_fn: Callable = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs,
):
    """Return `function(*args, **kwargs)`; backward calls `function` once more to recompute the tensors that it needs.

    `function` must do the same both times. Random numbers (unless `preserve_rng_state` is False) and autocast are
    restored; other global state is not. `context_fn` returns the contexts of the first and the second call. With
    `determinism_check="none"` the saved tensors' shapes, dtypes and devices are not compared. Only torch's version has
    `debug` and `early_stop=False` (finish the second call): ValueError.

    Inside torch.compile it is torch's own checkpoint.

    Keeps: the tensors among the arguments. Sends: nothing of its own; see the package's [Note: FSDP].

    Raises CheckpointError in backward if the second call saves fewer or different tensors than the first.

    The reentrant version needs a positional argument that requires grad, takes no keyword arguments, sees no tensors
    inside lists, and works in `loss.backward()` only. Misuse that it detects raises RuntimeError or ValueError.
    """
    if determinism_check not in ("default", "none") or debug or not early_stop:
        raise ValueError(
            f"checkpoint: {determinism_check=}, {debug=}, {early_stop=}: the first is 'default' or 'none' here, and "
            "the other two are torch's alone: import torch.utils.checkpoint for them"
        )
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    if torch.compiler.is_compiling():  # a compiler must know the recomputation, and knows torch's own
        options: dict = {} if context_fn is noop_context_fn else {"context_fn": context_fn}
        options |= {"preserve_rng_state": preserve_rng_state, "determinism_check": determinism_check}
        return torchs_checkpoint(function, *args, use_reentrant=use_reentrant, **options, **kwargs)
    if use_reentrant:
        _check_reentrant(function, args, kwargs, context_fn)
        return _Reentrant.apply(function, remember_surroundings(args, preserve_rng_state), *args)
    first_context, second_context = context_fn()
    region = _Region(function, args, kwargs, preserve_rng_state, second_context, determinism_check == "default")
    with saved_tensors_hooks(region.pack, region.unpack), first_context:
        return function(*args, **kwargs)


# Reentrant: autograd sees one operation. Its backward runs forward and backward of everything inside


class _Reentrant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, surroundings, *args):
        ctx.function, ctx.surroundings = function, surroundings
        ctx.others, tensors = _take_tensors_out(args)
        ctx.save_for_backward(*tensors)
        return function(*args)  # leaves no graph: autograd calls forward under no_grad

    @staticmethod
    def backward(ctx, *grad_outputs):
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError(
                "checkpoint(use_reentrant=True) works in loss.backward() alone, without its `inputs`: the parameters "
                "inside are out of autograd's sight. For torch.autograd.grad pass use_reentrant=False."
            )
        args = _put_tensors_in(ctx.others, [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors])
        with record_function("recompute"), ctx.surroundings(), torch.enable_grad():
            outputs = ctx.function(*args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        used = [i for i, out in enumerate(outputs) if isinstance(out, Tensor) and out.requires_grad]
        torch.autograd.backward([outputs[i] for i in used], [grad_outputs[i] for i in used])
        return None, None, *(arg.grad if isinstance(arg, Tensor) else None for arg in args)


def _check_reentrant(function, args, kwargs, context_fn) -> None:
    if kwargs or context_fn is not noop_context_fn:
        raise ValueError("checkpoint: keyword arguments and context_fn need use_reentrant=False")
    if not any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
        raise RuntimeError(
            f"checkpoint: no argument of {_name(function)} requires grad, so its parameters would get no gradients. "
            "Pass use_reentrant=False, or call requires_grad_() on an input."
        )


# Non-reentrant: autograd records the region as usual, but saves slots instead of tensors


class _Slot:
    """Placeholder for a saved tensor. Autograd holds it; the region's weak reference tells if it is still needed."""

    tensor: Tensor | None = None


class _AllSlotsFull(BaseException):
    """Ends the second call when all slots are full, before the operation that filled the last one runs.

    It is not an Exception, so `except Exception` in the function does not catch it.
    """


class _Region:
    """One checkpointed call: how to repeat it, and the slots of the tensors that it saved, in order."""

    def __init__(self, function, args, kwargs, preserve_rng_state, second_context, compares) -> None:
        leaves, self.structure = tree_flatten((args, kwargs))
        self.function, self.second_context, self.compares = function, second_context, compares
        self.surroundings = remember_surroundings(leaves, preserve_rng_state)
        self.others, tensors = _take_tensors_out(leaves)
        self.boundary = _Boundary.apply(torch.empty(0, requires_grad=True), *tensors)  # keeps its grad_fn alive
        self.slots: list[tuple[weakref.ref, tuple]] = []  # slot; its tensor's shape, dtype, device
        self.last_two: list[bool] = []  # for the last tensors saved: may their operation write to them afterwards?

    def pack(self, tensor: Tensor) -> _Slot:
        """Hook: return a slot for a tensor that the first call saves."""
        slot = _Slot()
        self.slots.append((weakref.ref(slot), _metadata(tensor)))
        self.last_two = [*self.last_two[-1:], _may_be_written(tensor)]
        return slot

    def unpack(self, slot: _Slot) -> Tensor:
        """Hook: return a tensor to backward and empty its slot: it is freed after use even if the graph is retained."""
        if slot.tensor is None:
            self._recompute()
        tensor, slot.tensor = slot.tensor, None
        return tensor

    def _recompute(self) -> None:
        leaves = _put_tensors_in(self.others, self.boundary.grad_fn.saved_tensors)
        args, kwargs = tree_unflatten(leaves, self.structure)
        refill = _Refill(self)
        hooks = saved_tensors_hooks(refill.pack, lambda tensor: tensor)  # no slots: the function may call autograd.grad
        label, broken_off = record_function("recompute"), suppress(_AllSlotsFull)
        with label, broken_off, self.surroundings(), torch.enable_grad(), hooks, self.second_context:
            self.function(*args, **kwargs)
        if refill.n_full < len(self.slots):
            raise self.error(f"{len(self.slots)} tensors were saved, now {refill.n_full}")

    def error(self, difference: str) -> CheckpointError:
        return CheckpointError(
            f"checkpoint: {_name(self.function)} did not do in backward what it did in forward: {difference}. "
            "What it depends on must be among its arguments, and stay as it was: no global that changes, no cache."
        )


class _Refill:
    """One recomputation: puts the tensors that the second call saves into the slots, in the first call's order."""

    def __init__(self, region: _Region) -> None:
        self.region, self.n_full = region, 0

    def pack(self, tensor: Tensor) -> Tensor:
        if self.n_full == len(self.region.slots):  # the operation that filled the last one has ended
            raise _AllSlotsFull
        reference, before = self.region.slots[self.n_full]
        if (now := _metadata(tensor)) != before and self.region.compares:
            raise self.region.error(f"tensor {self.n_full} was {before}, is {now}")
        if tensor.requires_grad:
            tensor = tensor.detach()  # otherwise it would keep the second call's graph alive
        if slot := reference():
            slot.tensor = tensor
        self.n_full += 1
        if self.n_full == len(self.region.slots) and not any(self.region.last_two):
            raise _AllSlotsFull
        return tensor


class _Boundary(torch.autograd.Function):
    """Saves the arguments as autograd saves tensors: inside an outer region, they go into its slots."""

    @staticmethod
    def forward(ctx, anchor, *tensors):
        ctx.save_for_backward(*tensors)
        return anchor.clone()


_TENSOR = object()


def _take_tensors_out(leaves) -> tuple[list, list[Tensor]]:
    """Return the leaves with a mark in place of each tensor, and the tensors, which autograd is to keep."""
    is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
    others = [_TENSOR if is_t else leaf for leaf, is_t in zip(leaves, is_tensor, strict=True)]
    return others, [leaf for leaf, is_t in zip(leaves, is_tensor, strict=True) if is_t]


def _put_tensors_in(others: list, tensors) -> list:
    tensors = iter(tensors)
    return [next(tensors) if leaf is _TENSOR else leaf for leaf in others]


def _metadata(tensor: Tensor) -> tuple:
    return tuple(tensor.shape), tensor.dtype, tensor.device


def _may_be_written(tensor: Tensor) -> bool:
    """Return whether an operation may save this tensor first and fill it later, as rrelu does with its random slopes.

    The operation makes such a tensor itself: no history, no parameter. The second call must not end before it is full.
    """
    is_parameter = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
    return tensor.is_floating_point() and not tensor.requires_grad and not is_parameter


def _name(function: Callable) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


# Surroundings: what a call depends on besides its arguments, that is, random number generators and autocast


def remember_surroundings(leaves: Iterable, preserve_rng_state: bool) -> Callable[[], AbstractContextManager]:
    """Return a context manager that sets generators, autocast and default device to what they are now, meanwhile."""
    devices, default = _devices(leaves), torch.get_default_device()
    rng_states = get_rng_states(devices) if preserve_rng_state else {}
    autocasts = [_autocast_options(device_type) for device_type in {d.type for d in devices}]

    @contextmanager
    def restored():
        with ExitStack() as stack:
            for options in autocasts:
                stack.enter_context(torch.autocast(**options))
            if default != torch.get_default_device():
                stack.enter_context(default)
            stack.callback(set_rng_states, get_rng_states(rng_states))
            set_rng_states(rng_states)
            yield

    return restored


def rng_states_of(leaves: Iterable) -> dict[torch.device, Tensor]:
    return get_rng_states(_devices(leaves))


def get_rng_states(devices: Iterable[torch.device]) -> dict[torch.device, Tensor]:
    return {d: torch.get_rng_state() if d == CPU else torch.get_device_module(d).get_rng_state(d) for d in devices}


def set_rng_states(states: dict[torch.device, Tensor]) -> None:
    for device, state in states.items():
        if device == CPU:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


def _devices(leaves: Iterable) -> set[torch.device]:
    return {CPU} | {leaf.device for leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_meta}


def _autocast_options(device_type: str) -> dict:
    enabled, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    cached = torch.is_autocast_cache_enabled()
    return {"device_type": device_type, "enabled": enabled, "dtype": dtype, "cache_enabled": cached}
