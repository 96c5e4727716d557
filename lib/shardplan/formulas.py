"""Bytes that a rank holds and sends under each sharding strategy, by arithmetic alone; `shardlab.measure` measures it.

Psi is the bytes of the model's parameters, N the number of ranks, k the bytes of optimizer states for each byte of
parameters. Strategies differ in which of these bytes they shard: a rank keeps 1/N of them between steps. A strategy
that shards the parameters as well gathers them for their use, unit by unit.

    strategy        parameters  gradients  optimizer states  bytes that a rank sends in a step
    DDP             Psi         Psi        k Psi             2 Psi (N-1)/N
    DDP+ZERO_1      Psi         Psi        k Psi / N         3 Psi (N-1)/N: owners broadcast what they updated
    ZERO_1          Psi         Psi        k Psi / N         2 Psi (N-1)/N
    ZERO_2          Psi         Psi / N    k Psi / N         2 Psi (N-1)/N
    SHARD_GRAD_OP   Psi / N     Psi / N    k Psi / N         2 Psi (N-1)/N
    FULL_SHARD      Psi / N     Psi / N    k Psi / N         3 Psi (N-1)/N, less the root's second all_gather

Source: Rajbhandari et al. 2020, "ZeRO", table 1 and section 7; Zhao et al. 2023, "PyTorch FSDP", section 3.2.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shardlab.point_to_point_collectives import ring_all_gather_cost, ring_all_reduce_cost

# What is sharded: parameters, gradients, optimizer states.
STRATEGIES = {
    "DDP": (False, False, False),
    "DDP+ZERO_1": (False, False, True),
    "ZERO_1": (False, False, True),
    "ZERO_2": (False, True, True),
    "SHARD_GRAD_OP": (True, True, True),
    "FULL_SHARD": (True, True, True),
}


def units_of(module: nn.Module, children: Iterable[nn.Module] = ()) -> list[list[Tensor]]:
    """Return each unit's parameters as meta tensors, each parameter once. The root is last; it has the remaining ones.

    Call it before the module is wrapped. A module on the meta device is enough, as only shapes and dtypes count.
    """
    seen: set[Tensor] = set()
    units = []
    for unit in (*children, module):
        units.append([p.detach().to("meta") for p in unit.parameters() if p not in seen])
        seen.update(unit.parameters())
    return units


@dataclass(frozen=True)
class Expected:
    """Upper limits for a correct implementation, in bytes: what a rank holds and sends. All parameters have one dtype.

    Each parameter is cut on dim 0 and padded, as torch.chunk cuts it; cutting a flat buffer takes no more.
    """

    strategy: str  # one of STRATEGIES
    units: list[list[Tensor]]  # see units_of
    world_size: int
    shard_size: int | None = None  # hybrid: number of ranks that share one copy of the model, world_size by default
    state_bytes: int = 8  # of optimizer states an element: 8 for Adam in fp32, 12 with a master copy
    param_dtype: torch.dtype | None = None  # of the parameters as they are gathered
    reduce_dtype: torch.dtype | None = None  # of the gradients as they are reduced
    bucket_bytes: int = 0  # ZERO_2: a bucket's cap
    root_reshards: bool = False  # FULL_SHARD: the root reshards after forward too, though backward begins with it
    hidden_share: float = 0.0  # share of the gradients that must be on its way before backward ends
    spare_bytes: int = 4096  # for scalars, the batch, alignment; buffers, if the model has any

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"no strategy {self.strategy!r}; there are {', '.join(STRATEGIES)}")

    # Between steps

    @property
    def parameters(self) -> int:
        return self._share if self._sharded[0] else self._whole

    @property
    def gradients(self) -> int:
        """Bytes of gradients when backward ends."""
        return self._share if self._sharded[1] else self._whole

    @property
    def optimizer_states(self) -> int:
        """Bytes of the states, and of a 4-byte step count for each parameter."""
        n_bytes = self._share if self._sharded[2] else self._whole
        if self.strategy == "DDP+ZERO_1":
            n_bytes += self._largest_parameter  # it assigns whole parameters to ranks
        return n_bytes // self._itemsize * self.state_bytes + 4 * len(self._parameters)

    @property
    def elsewhere(self) -> int:
        """Bytes in none of these categories: buckets that outlive the step."""
        if not self._sharded[1]:
            return self._whole
        return 0 if self._sharded[0] else 2 * self.bucket_bytes

    # During a step

    @property
    def unsharded_after_forward(self) -> int:
        if not self._sharded[0]:
            return 0
        if self.strategy == "SHARD_GRAD_OP":
            return int(self._whole * self._cast(self.param_dtype))
        return 0 if self.root_reshards else int(_nbytes(self.units[-1]) * self._cast(self.param_dtype))

    @property
    def unsharded_peak(self) -> int:
        """Peak of unsharded parameters (root, unit in use and next unit, or all) and of three units' gradients."""
        if not self._sharded[0]:
            return 0
        gathered = self._whole if self.strategy == "SHARD_GRAD_OP" else self._few_units
        return int((gathered + self._few_units) * self._cast(self.param_dtype))

    @property
    def gradients_peak(self) -> int:
        """Peak bytes of gradients. Whole gradients that wait to be reduced count: two buckets, or a few units."""
        if not self._sharded[1]:
            return self._whole + self._largest_parameter
        return self._share + (
            self._few_units if self._sharded[0] else 2 * (self.bucket_bytes + self._largest_parameter)
        )

    @property
    def peak_of_states(self) -> int:
        """Upper limit for all but activations. Two units that arrive and two that leave are held twice."""
        if self._sharded[0]:
            return (
                self.parameters + self.gradients + self.optimizer_states + self.unsharded_peak + 4 * self._largest_unit
            )
        waiting = 2 * (self.bucket_bytes + self._largest_parameter) if self.strategy == "ZERO_1" else 0
        return self.parameters + self.gradients_peak + waiting + self.optimizer_states

    # Bytes on the wire

    @property
    def wire_bytes(self) -> float:
        """Bytes sent in a step: all_gathers and a reduce_scatter among sharers, an all_reduce among replicas.

        An all_reduce, here of the shard, is a reduce_scatter and an all_gather, both of gradients.
        """
        n, replicas = self.shards, self.world_size // self.shards
        part = self._share if self._sharded[0] else self._whole / n
        to_params, to_gradients = self._cast(self.param_dtype), self._cast(self.reduce_dtype)
        gathered = part
        if self.strategy == "FULL_SHARD":
            root = sum(shard_bytes(p, n) for p in self.units[-1])
            gathered += part if self.root_reshards else part - root
        if self.strategy.startswith("DDP"):
            to_params = to_gradients
        steps = ring_all_gather_cost(1, n).steps  # each sends one share
        broadcast = steps * part if self.strategy == "DDP+ZERO_1" else 0
        among_replicas = ring_all_reduce_cost(1, replicas).sent_bytes * part * to_gradients
        return steps * (gathered * to_params + part * to_gradients) + among_replicas + broadcast

    @property
    def reduced_elements(self) -> int:
        """Number of gradients' elements that must be summed over ranks."""
        return self._whole // self._itemsize if self.world_size > 1 else 0

    # The terms

    @property
    def shards(self) -> int:
        return self.shard_size or self.world_size

    @property
    def _sharded(self) -> tuple[bool, bool, bool]:
        return STRATEGIES[self.strategy]

    @property
    def _parameters(self) -> list[Tensor]:
        return [p for unit in self.units for p in unit]

    @property
    def _itemsize(self) -> int:
        return self._parameters[0].itemsize

    @property
    def _whole(self) -> int:
        return _nbytes(self._parameters)

    @property
    def _share(self) -> int:
        return sum(shard_bytes(p, self.shards) for p in self._parameters)

    @property
    def _largest_parameter(self) -> int:
        return max(p.nbytes for p in self._parameters)

    @property
    def _few_units(self) -> int:
        return _nbytes(self.units[-1]) + 2 * self._largest_unit

    @property
    def _largest_unit(self) -> int:
        return max(map(_nbytes, self.units[:-1]), default=0)  # without the root

    def _cast(self, dtype: torch.dtype | None) -> float:
        return dtype.itemsize / self._itemsize if dtype else 1.0


def shard_bytes(p: Tensor, n: int) -> int:
    """Bytes of one rank's share of a parameter, padding included: ceil(rows / n) rows."""
    return math.ceil(p.shape[0] / n) * (p.nbytes // p.shape[0]) if p.numel() > 1 else p.nbytes


def _nbytes(params: list[Tensor]) -> int:
    return sum(p.nbytes for p in params)
