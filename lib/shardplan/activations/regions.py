"""Recomputation: a region frees what its nodes save, and recomputes it when backward first asks for any of it.

[Note: what stays] The region keeps its arguments and, under a selective policy, the results of some products until the
second call takes them. The second call stops at the last tensor that it has to save. What comes after it, above all the
last product, is not computed again. If a policy kept that product's result, it stays until the region is freed.

Source: torch.utils.checkpoint (use_reentrant=False); `shardlab.recompute` is our version of it.
"""

import weakref
from collections.abc import Callable
from contextlib import suppress

from shardplan.activations.tape import Tape, Value, mark_kept

COLLECTIVES = ("all_gather", "reduce_scatter", "all_to_all")
# Functions that tell whether a product's result is kept, by its kind and its number among matrix products, from 1.
# torchtitan's list has aten.mm (every second one), attention and reduce_scatter_tensor; inputs are gathered again
# (pytorch/torchtitan, parallelize_llama.py, _save_list)
POLICIES: dict[str, Callable[[str, int], bool]] = {
    "full": lambda kind, n: False,
    "selective": lambda kind, n: kind in ("attention", "reduce_scatter") or (kind == "mm" and n % 2 == 1),
    "products": lambda kind, n: kind not in COLLECTIVES,  # shardlab.recompute.save_products
}


class Slot:
    """A placeholder for a saved value. Nodes hold the slot; the region has only a weak reference."""

    value: Value | None = None

    def __init__(self, region: "Region") -> None:
        self.region = region


class _AllSlotsFull(BaseException):
    """Signal that stops the second call once everything that it has to save is there."""


class Region:
    """One call of `function(*arguments)` that can be computed again."""

    def __init__(self, tape: Tape, policy: str, function: Callable, arguments: tuple[Value, ...]) -> None:
        self.tape, self.keeps, self.function, self.arguments = tape, POLICIES[policy], function, arguments
        for argument in arguments:
            mark_kept(argument)
        self.slots: list[weakref.ref[Slot]] = []
        self.results: list[tuple[Value, ...] | None] = []
        self.n_full: int | None = None  # in the second call
        self.n_products = self.n_calls = 0

    def call(self) -> Value:
        self.tape.region = self
        output = self.function(*self.arguments)
        self.tape.region = None
        return output

    def pack(self, value: Value) -> Slot | Value:
        if self.n_full is None:
            slot = Slot(self)
            self.slots.append(weakref.ref(slot))
            return slot
        if slot := self.slots[self.n_full]():
            slot.value = value
            mark_kept(value)
        self.n_full += 1
        if self.n_full == len(self.slots):
            raise _AllSlotsFull
        return value

    def product(self, kind: str, make: Callable, node) -> Value | tuple[Value, ...]:
        """Return a product's result: computed, or kept from the first call. A kept one is returned only once."""
        if self.n_full is not None:
            kept, self.results[self.n_calls] = self.results[self.n_calls], None
            self.n_calls += 1
            return _give(kept, node) if kept else make()
        result = make()
        self.n_products += kind == "mm"
        values = result if isinstance(result, tuple) else (result,)
        kept = tuple(value.alias() for value in values) if self.keeps(kind, self.n_products) else None
        for value in kept or ():
            mark_kept(value)
        self.results.append(kept)
        return result

    def recompute(self) -> None:
        tape = self.tape
        nodes, tape.nodes, tape.region, self.n_full, self.n_calls = tape.nodes, [], self, 0, 0
        with suppress(_AllSlotsFull):
            self.function(*self.arguments)
        tape.nodes, tape.region, self.n_full = nodes, None, None
        tape.casts.clear()


def _give(kept: tuple[Value, ...], node) -> Value | tuple[Value, ...]:
    result = kept[0].alias(node)
    return (result, *kept[1:]) if len(kept) > 1 else result
