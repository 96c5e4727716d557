"""A small autograd that knows only sizes: what an operation makes, what it saves, and when each tensor is freed.

Vocabulary. A *storage* is a block of bytes, with words that say what it holds. A *value* stands for a tensor: a
storage, and the *node* of the graph that made it. A node *saves* values until its backward is done.

[Note: lifetimes] A tensor lives as long as a Python variable, a node, or autograd's buffer of gradients holds it. Here,
the variables of `model` (the real model's, line by line), the nodes, and the buffers hold storages in the same way. So
it follows, without further rules, which storages are live at an operation.

[Note: order] Autograd runs the backward of the node made last first. It makes the node's gradients while the incoming
gradient and the saved values are still live, then frees these, then passes each gradient on. If a gradient already
waits there, the sum is a third tensor, as a MemoryTracker sees it. (Without a tracker autograd adds in place if it can;
memory is fullest at other points.)

Source: torch/csrc/autograd/engine.cpp and input_buffer.cpp.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from shardplan.activations.sizes import Sizes

DTYPES = {1: "8 bits", 2: "16 bits", 4: "32 bits", 8: "64 bits"}


@dataclass(eq=False)
class HeldBytes:
    """Facts about a storage that stay known when it is freed."""

    words: str
    n_bytes: int
    kept: bool = False  # an activation: saved for backward


class Storage:
    __slots__ = ("__weakref__", "entry")

    def __init__(self, entry: HeldBytes) -> None:
        self.entry = entry


@dataclass(eq=False)
class Node:
    """An operation. `backward` takes a gradient for each output, and returns one for each edge: (node, output)."""

    name: str
    edges: tuple[tuple["Node", int] | None, ...] = ()
    saved: list = field(default_factory=list)  # values, or slots of a region
    backward: Callable = lambda *gradients: ()
    parameter: str = ""  # a leaf: the gradient stays


@dataclass(eq=False)
class Value:
    """A tensor. Without a node it is a constant and gets no gradient; without a storage it has no bytes here."""

    storage: Storage | None
    dims: str  # "B T F"
    itemsize: int
    node: Node | None = None
    output: int = 0  # of its node
    share: "Value | None" = None  # kept in its place, to make it again: of a gathered one, what this rank had before
    in_8_bits: "Value | None" = None  # a copy that linear layers keep in its place

    @property
    def edge(self) -> tuple[Node, int] | None:
        return (self.node, self.output) if self.node else None

    def alias(self, node: Node | None = None, output: int = 0, dims: str = "") -> "Value":
        return Value(self.storage, dims or self.dims, self.itemsize, node, output)


@dataclass
class Snapshot:
    """All that is live at one operation, and the parameters that have a gradient by then."""

    name: str
    live: tuple[HeldBytes, ...]
    gradients: tuple[str, ...]

    @property
    def n_bytes(self) -> int:
        return sum(entry.n_bytes for entry in self.live)


class Tape:
    """Record of operations. `is_trained(name)` tells whether a parameter is trained."""

    def __init__(
        self,
        sizes: Sizes,
        is_trained: Callable[[str], bool] = lambda name: True,
        *,
        autocast: bool = False,
        on_gpu: bool = False,
        gathers_again: bool = False,
        codes: Callable[[str], tuple[bool, bool, bool]] = lambda name: (False, False, False),
    ) -> None:
        self.sizes, self.is_trained = sizes, is_trained
        self.snapshots: list[Snapshot] = []
        self.region = None  # where values are saved, if not in nodes: see `regions`
        self.on_gpu, self.gathers_again = on_gpu, gathers_again
        self.codes = codes  # see `eight_bits.codes`
        self.autocast, self.casts = autocast, {}  # by the parameter's name: held until autocast ends
        self.until_loss: list[Value] = []  # other values that code outside of the part holds until the loss is made
        self.nodes: list[Node] = []
        self._live: list[weakref.ref[Storage]] = []
        self._gradients: list[str] = []
        self._waiting: dict[Node, dict[int, Value]] = {}
        self._outside: list[Storage] = []
        self._at = ""  # the node whose backward is running

    def count(self, dims: str) -> int:
        return self.sizes(dims)

    # Forward

    def new(self, words: str, dims: str, itemsize: int, node: Node | None = None) -> Value:
        """Make a new tensor, and take a snapshot at that moment."""
        n_bytes = self.count(dims) * itemsize
        storage = Storage(HeldBytes(f"{words}, {self.sizes.shown(dims)} in {DTYPES[itemsize]}", n_bytes))
        self._live.append(weakref.ref(storage))
        self.look(words)
        return Value(storage, dims, itemsize, node)

    def look(self, words: str) -> None:
        self._live = [ref for ref in self._live if ref()]
        live = tuple(storage.entry for ref in self._live if (storage := ref()))
        self.snapshots.append(Snapshot(f"{self._at}{words}", live, tuple(self._gradients)))

    def node(self, name: str, inputs: tuple[Value, ...], saved: list[Value], backward: Callable) -> Node | None:
        """Add a node and save its values. Returns None, and saves nothing, if no gradient flows to any input."""
        edges = tuple(value.edge for value in inputs)
        if not any(edges):
            return None
        node = Node(name, edges, [self._save(value) for value in saved], backward)
        self.nodes.append(node)
        return node

    def save_result(self, node: Node | None, value: Value) -> None:
        if node:
            node.saved.append(self._save(value))

    def _save(self, value: Value):
        saved = value.alias()
        if self.region:
            return self.region.pack(saved)
        mark_kept(saved)
        return saved

    def input(self, words: str, dims: str, itemsize: int) -> Value:
        """Return a tensor that an earlier part has made and that needs a gradient."""
        return self.new(words, dims, itemsize, Node("input"))

    def keep(self, value: Value) -> Value:
        """Keep a value live until backward ends, as code outside of the part holds it."""
        mark_kept(value)
        self._outside.append(value.storage)
        return value

    def parameter(self, name: str, dims: str, itemsize: int) -> Value:
        return Value(None, dims, itemsize, Node(name, parameter=name) if self.is_trained(name) else None)

    def product(self, kind: str, make: Callable, node: Node | None):
        """Return the result of a matrix product or of attention, which a region may have kept."""
        return self.region.product(kind, make, node) if self.region else make()

    @property
    def live(self) -> tuple[HeldBytes, ...]:
        return tuple(storage.entry for ref in self._live if (storage := ref()))

    # Backward

    def backward(self, of: tuple[Node, int], gradients: list[Value]) -> None:
        """Run backward of every node, beginning at `of` with the gradient in the list, which is taken out of the list.

        A gradient that arrives at a leaf other than a parameter stays live: the part before will use it.
        """
        node, output = of
        self._waiting = {node: {output: gradients.pop()}}
        del of
        while self.nodes:
            node = self.nodes.pop()
            if node in self._waiting:
                self._undo(node)

    def gradient(self, of: Value, dims: str, itemsize: int, words: str = "") -> Value | None:
        """Make a new gradient. For a parameter only record its name, and return None."""
        if of.node and of.node.parameter:
            self._gradients.append(of.node.parameter)
            self.look(f"gradient of {of.node.parameter}")
            return None
        return self.new(words or "gradient", dims, itemsize)

    def _undo(self, node: Node) -> None:
        before, self._at = self._at, f"backward of {node.name}: "
        _compute_again(node)
        gradients = list(node.backward(*self._incoming(node)))
        node.saved.clear()
        del self._waiting[node]
        for edge in node.edges:
            gradient = gradients.pop(0)
            if edge and gradient:
                self._hand_on(*edge, gradient)
        self._at = before

    def _incoming(self, node: Node) -> list[Value | None]:
        waiting = self._waiting[node]
        return [waiting.get(output) for output in range(max(waiting) + 1)]

    def _hand_on(self, node: Node, output: int, gradient: Value) -> None:
        waiting = self._waiting.setdefault(node, {})
        if output in waiting:
            words = waiting[output].storage.entry.words.split(",")[0]
            gradient = self.new(words, gradient.dims, gradient.itemsize)
        waiting[output] = gradient


def mark_kept(value: Value) -> None:
    if value.storage:
        value.storage.entry.kept = True


def _compute_again(node: Node) -> None:
    for saved in node.saved:
        if not isinstance(saved, Value) and saved.value is None:
            saved.region.recompute()
