"""What would a rank hold? Model, ranks, precision and optimizer in; a stack for each strategy out, beside a GPU's size.

The figures are those of `measure.strategies`: the most that a right implementation holds of parameters, gradients,
optimizer states, gathered parameters and buckets, with torch's defaults (DDP's buckets are a second copy of the
gradients, of 25 MiB where they are not kept). Activations are not among them; they hang on batch, sequence length and
checkpointing.
"""

import functools

import torch
from matplotlib.figure import Figure
from torch import Tensor

from shardlab.measure.strategies import STRATEGIES, Expected, units_of
from shardlab.model import PRESETS, Transformer, preset
from shardlab.show.plots import memory_stacks
from shardlab.show.widgets.pane import Pane, choice, slider

RANKS = [2**i for i in range(11)]
GPUS_GIB = {"T4, 16 GiB": 16, "RTX 4090, 24 GiB": 24, "A100, 40 GiB": 40, "H100, 80 GiB": 80, "H200, 141 GiB": 141}
# Dtype of the parameters between steps, of what is gathered, and bytes an element of a master copy
PRECISIONS = {
    "fp32": (torch.float32, None, 0),
    "fp32, gathered in bf16": (torch.float32, torch.bfloat16, 0),
    "bf16, fp32 master copy": (torch.bfloat16, None, 4),
    "bf16 only": (torch.bfloat16, None, 0),
}
BUCKET = 25 * 2**20
# States an element, and bytes of each
OPTIMIZERS = {"AdamW": (2, 4), "AdamW, 8-bit": (2, 1), "SGD with momentum": (1, 4), "SGD": (0, 4)}


class MemoryExplorer(Pane):
    """Choose, and see which strategies fit."""

    def __init__(
        self, model: str = "8B", ranks: int = 8, strategy: str = "FULL_SHARD", gpu: str = "H100, 80 GiB"
    ) -> None:
        self.model = choice("Model", PRESETS, model)
        self.ranks = choice("Ranks", RANKS, ranks)
        self.strategy = choice("Strategy", STRATEGIES, strategy)
        self.precision = choice("Precision", PRECISIONS, "bf16, fp32 master copy")
        self.optimizer = choice("Optimizer", OPTIMIZERS, "AdamW")
        self.gpu = choice("GPU", GPUS_GIB, gpu)
        controls = (self.model, self.ranks, self.strategy, self.precision, self.optimizer, self.gpu)
        super().__init__("Memory explorer", [self.model, slider(self.ranks), *controls[2:]])
        for control in controls:
            control.observe(lambda change: self.draw(), names="value")
        self.draw()

    def draw(self) -> None:
        held = {strategy: self.held(strategy) for strategy in STRATEGIES}
        self.show(self._picture(held), self._in_words(held[self.strategy.value]))

    def held(self, strategy: str) -> dict[str, int]:
        """Bytes of a rank by category, without activations."""
        dtype, gathered, master_bytes = PRECISIONS[self.precision.value]
        n_states, state_bytes = OPTIMIZERS[self.optimizer.value]
        units, states = model_units(self.model.value, dtype), n_states * state_bytes + master_bytes
        return by_category(
            Expected(strategy, units, self.ranks.value, state_bytes=states, param_dtype=gathered, bucket_bytes=BUCKET)
        )

    def _picture(self, held: dict[str, dict[str, int]]) -> Figure:
        names = {name: f"{name}, chosen" if name == self.strategy.value else name for name in held}
        return memory_stacks(
            {names[name]: parts for name, parts in held.items()},
            {},
            budget=(self.gpu.value, GPUS_GIB[self.gpu.value] * 2**30),
            title=f"{self.model.value} on {self.ranks.value} ranks, without activations",
        )

    def _in_words(self, held: dict[str, int]) -> str:
        left = GPUS_GIB[self.gpu.value] * 2**30 - sum(held.values())
        verdict = f"leaves {gib(left)} for activations" if left > 0 else f"is {gib(-left)} too little"
        parts = ", ".join(f"{name.replace('_', ' ')} {gib(n)}" for name, n in held.items() if n)
        return (
            f"{self.strategy.value}, {self.model.value} on {self.ranks.value} ranks: {gib(sum(held.values()))} a rank "
            f"({parts}). {self.gpu.value}, {verdict}."
        )


def by_category(expected: Expected) -> dict[str, int]:
    """They add up to `peak_of_states`, and what DDP keeps in its buckets comes on top."""
    parameters_sharded, *_ = STRATEGIES[expected.strategy]
    parts = {
        "parameters": expected.parameters,
        "optimizer_states": expected.optimizer_states,
        "gradients": expected.gradients if parameters_sharded else expected.gradients_peak,
        "unsharded": expected.unsharded_peak,
    }
    kept = expected.elsewhere if expected.strategy.startswith("DDP") else 0
    return parts | {"buckets": expected.peak_of_states - sum(parts.values()) + kept}


@functools.cache
def model_units(name: str, dtype: torch.dtype) -> list[list[Tensor]]:
    """A unit for each block and one for the rest, as meta tensors."""
    with torch.device("meta"):
        model = Transformer(preset(name)).to(dtype)
    return units_of(model, model.blocks)


def gib(n_bytes: float) -> str:
    size = n_bytes / 2**30
    return f"{size:,.0f} GiB" if size >= 100 else f"{size:.3g} GiB"
