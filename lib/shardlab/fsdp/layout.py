"""Interface of a layout: which element of a unit belongs to which rank, and how a message is laid out."""

from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from shardlab.fsdp.ranks import Ranks
from shardlab.fsdp.slots import Slot

Gradients = dict[Any, Tensor]  # by whatever the layout takes apart: whole, and unsharded


class Layout(Protocol):
    """Layout of parameters that travel in one message; `per_parameter` and `flat_parameter` say what each costs."""

    slots: list[Slot]
    children_first: ClassVar[bool]  # the order of parameters in a unit

    def __init__(self, slots: list[Slot], ranks: Ranks, param_dtype: torch.dtype | None, on_cpu: bool) -> None: ...

    @staticmethod
    def groups(slots: list[Slot]) -> list[list[Slot]]:
        """Group the parameters of a unit by message."""

    @property
    def sharded_params(self) -> list[nn.Parameter]:
        """Parameters that the optimizer sees."""

    # The modules hold sharded parameters, or whole ones

    def put_sharded(self) -> None: ...

    def refresh(self) -> None: ...

    def all_gather_tensors(self) -> tuple[Tensor, Tensor]: ...

    def use(self, output: Tensor | None) -> None: ...

    def free(self) -> None: ...

    # Gradients

    def keep_gradients(self, reduce_dtype: torch.dtype | None) -> None: ...

    def take_gradients(self) -> Gradients: ...

    def reduce_scatter_input(self, gradients: Gradients, dtype: torch.dtype) -> Tensor: ...

    def take_reduced_gradients(self, params: list, shard: Tensor) -> None: ...
