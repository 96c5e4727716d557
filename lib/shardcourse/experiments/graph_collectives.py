"""Run one step of a model whose collectives are operations of its graph, as SimpleFSDP makes them: lesson 17.

The graph of forward runs operation by operation. A product can take the time of a real accelerator: it sleeps.

Source: Zhang et al., SimpleFSDP (2024); torch/_dynamo/backends/common.py (aot_autograd).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule

from shardcourse.experiments.relative_error import relative_error
from shardlab import local_device
from shardlab.model import Transformer, preset
from shardlab.text_batches import batch

CONFIG = preset("1M", n_layers=2)
PRODUCT = torch.ops.aten.mm.default


@dataclass(frozen=True)
class GraphStep:
    """One rank's step: the operations of both graphs in order, the fastest forward, and errors beside a whole model.

    An error is relative. A shard's gradient is compared with the sum of all ranks' gradients.
    """

    loss_error: float
    gradient_error: float
    forward: list[str]
    backward: list[str]
    forward_s: float

    def counts(self) -> dict[str, int]:
        """Number of collectives in forward and in backward."""
        kinds = "all_gather", "reduce_scatter"
        return {f"{kind}s in {name}": sum(op.startswith(kind) for op in getattr(self, name))
                for name in ("forward", "backward") for kind in kinds}  # fmt: skip


def step(
    shard: Callable[[nn.Module], object],
    change: Callable[[GraphModule], object] = lambda graph: None,
    product_s: float = 0.0,
    repeats: int = 3,
) -> GraphStep:
    """Run steps of a sharded model in one graph. `change` rewrites forward's graph; a product sleeps `product_s`."""
    torch.manual_seed(0)
    model = Transformer(CONFIG).to(local_device())
    sizes = {"global_batch": dist.get_world_size(), "seq_len": 16, "device": local_device()}
    data, times = batch(0, 0, dist.get_rank(), dist.get_world_size(), **sizes), []
    whole_loss, whole_gradients = _whole_step(model, data)
    shard(model)
    operations: list[list[str]] = []

    def compiler(change: Callable, product_s: float, graph: GraphModule, _) -> Callable:
        change(graph)
        operations.append([node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"])
        for node in graph.graph.nodes:
            if node.target is PRODUCT and product_s:
                node.target, node.args = _slept_product, (product_s, *node.args)
        graph.recompile()
        return make_boxed_func(graph.forward)

    of_forward, of_backward = partial(compiler, change, product_s), partial(compiler, lambda graph: None, 0.0)
    partition = {"partition_fn": min_cut_rematerialization_partition}
    model.compile(backend=aot_autograd(fw_compiler=of_forward, bw_compiler=of_backward, **partition), fullgraph=True)
    for _ in range(1 + repeats):  # the first one compiles
        model.zero_grad()
        dist.barrier()
        began = time.perf_counter()
        loss = model(*data)
        times.append(time.perf_counter() - began)
        loss.backward()
    errors = [relative_error(p.grad, whole) for p, whole in zip(_matrices(model), whole_gradients, strict=True)]
    forward, backward = operations
    return GraphStep(relative_error(loss.detach(), whole_loss), max(errors), forward, backward, min(times[1:]))


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for block in model.blocks for p in block.parameters() if p.ndim == 2]


def _whole_step(model: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return this rank's loss, and the part of the summed gradients that belongs to its shards."""
    loss = model(*data)
    loss.backward()
    gradients = [p.grad for p in _matrices(model)]
    for gradient in gradients:
        dist.all_reduce(gradient)
    model.zero_grad()
    return loss.detach(), [g.chunk(dist.get_world_size())[dist.get_rank()] for g in gradients]


def _slept_product(seconds: float, a: Tensor, b: Tensor) -> Tensor:
    time.sleep(seconds)
    return PRODUCT(a, b)
