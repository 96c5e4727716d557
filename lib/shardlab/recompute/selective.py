"""Selective recomputation: keep the results of some operations, so that the second call skips these operations."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import SAC_IGNORED_OPS, CheckpointError, CheckpointPolicy, SelectiveCheckpointContext
from torch.utils.flop_counter import flop_registry

from shardlab.recompute.region import rng_states_of, set_rng_states

_PRODUCT = re.compile(r"mm(_v2)?\b|attention|attn")  # grouped and custom ones, which torch's FLOP counter does not know


def save_products(ctx, op, *args, **kwargs) -> CheckpointPolicy:
    """Policy: keep the results of matrix products, convolutions and attention, which take nearly all of the FLOPs."""
    is_product = getattr(op, "overloadpacket", op) in flop_registry or _PRODUCT.search(op.name())
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


def create_selective_checkpoint_contexts(policy_fn_or_list: Callable | list):
    """Return `checkpoint`'s two contexts: `context_fn=partial(create_selective_checkpoint_contexts, policy)`.

    For each ATen operation of the first call, `policy(ctx, op, *args, **kwargs)` returns torch's CheckpointPolicy, or
    True to save and False to recompute. A list instead of a policy names the operations to save. An operation that
    changes its argument is always recomputed.

    Keeps: the saved results, until the second call has used them. So only one backward is possible.

    Raises ValueError for a policy that asks to save to the CPU, and for a list with anything but operations; TypeError
    for what is no policy; CheckpointError in a second backward, if a saved result was changed in place meanwhile, or if
    the second call runs an operation with saved results more often than the first.

    Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 5.
    """
    policy = policy_fn_or_list
    if not callable(policy) and not isinstance(policy, list):
        raise TypeError(f"checkpoint: {policy!r:.80} is neither a policy nor a list of operations")
    if isinstance(policy, list):
        if wrong := [op for op in policy if not isinstance(op, torch._ops.OperatorBase)]:
            raise ValueError(f"checkpoint: {wrong[0]!r:.80} is no operation such as torch.ops.aten.mm.default")

        def policy(ctx, op, *args, **kwargs):
            return op in policy_fn_or_list

    results: dict = defaultdict(list)
    return _Save(policy, results), _Reuse(results)


_SAVE = {CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE, True}
_RECOMPUTE = {CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE, False}
_TAKEN = object()


class _Save(TorchDispatchMode):
    """First call: records every operation's result, or None if it will be recomputed."""

    def __init__(self, policy: Callable, results: dict) -> None:
        super().__init__()
        self.policy, self.results = policy, results

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = op(*args, **kwargs)
        if op not in SAC_IGNORED_OPS:
            self.results[op].append(_Result(op, result) if self._is_saved(op, args, kwargs) else None)
        return result

    def _is_saved(self, op, args, kwargs) -> bool:
        decision = self.policy(SelectiveCheckpointContext(is_recompute=False), op, *args, **kwargs)
        if decision not in _SAVE | _RECOMPUTE:
            raise ValueError(f"checkpoint: the policy returned {decision} for {op}; here it can only save or recompute")
        return decision in _SAVE and not op._schema.is_mutable


class _Reuse(TorchDispatchMode):
    """Second call: an operation's n-th call returns the result of its n-th call in the first, if that was saved."""

    def __init__(self, results: dict) -> None:
        super().__init__()
        self.results = results

    def __enter__(self):
        self.calls = Counter()
        return super().__enter__()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = None if op in SAC_IGNORED_OPS else self._next_result(op)
        return op(*args, **(kwargs or {})) if result is None else result.take()

    def _next_result(self, op) -> "_Result | None":
        n, results = self.calls[op], self.results[op]
        self.calls[op] += 1
        if not any(results):  # no result of this operation was saved: nothing to match
            return None
        if n >= len(results):
            raise CheckpointError(f"checkpoint: forward called {op} {n} times, its recomputation calls it more often")
        if results[n] is _TAKEN:
            raise CheckpointError("checkpoint: results saved by a policy serve one backward, and this is another")
        if (result := results[n]) is not None:
            results[n] = _TAKEN
        return result


class _Result:
    """Result of an operation and, if the operation drew random numbers, the generators' states after it.

    Without these states, later random numbers of the second call would differ from the first call's.
    """

    def __init__(self, op, result) -> None:
        self.op, self.kept = op, tree_map_only(Tensor, _alias, result)
        self.versions = self._versions()
        is_random = torch.Tag.nondeterministic_seeded in op.tags
        self.rng_states = rng_states_of(tree_leaves(result)) if is_random else {}

    def take(self):
        if self._versions() != self.versions:
            raise CheckpointError(f"checkpoint: a saved result of {self.op} was changed in place; recompute it instead")
        set_rng_states(self.rng_states)
        return self.kept

    def _versions(self) -> list[int]:
        return [leaf._version for leaf in tree_leaves(self.kept) if isinstance(leaf, Tensor)]


def _alias(tensor: Tensor) -> Tensor:
    """Return the same memory outside autograd's graph, which would otherwise keep itself alive; still counts writes."""
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach()
