"""Lesson 17: what is compiled trains as the eager job does, sends the same, and a graph's gathers can be moved."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.distributed.fsdp import fully_shard
from torch.nn.utils.parametrize import register_parametrization

from shardcourse.experiments import compiled, graph_collectives
from shardlab import launch


def shard(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def blocks_then_shard(model, backend="aot_eager"):
    return shard(compiled.compile_blocks(model, backend))


def test_a_branch_on_data_is_a_break_and_one_on_a_shape_is_none():
    for condition, breaks in (lambda y: y.max() > 3, 1), (lambda y: y.shape[0] > 3, 0):
        with compiled.counted() as counts:
            torch.compile(lambda x, condition=condition: x * 2 if condition(x * 3) else x + 1, backend="aot_eager")(
                torch.ones(2, 2)
            )
        assert counts.breaks == breaks


def shard_then_blocks(model):
    return compiled.compile_blocks(shard(model))


def test_compiled_blocks_train_as_eager_ones_and_send_the_same_in_both_orders():
    ways = {"eager": shard, "blocks first": blocks_then_shard, "blocks last": shard_then_blocks}
    eager, *others = launch(compiled.train_each, 2, ways, device="cpu")[0].values()
    assert eager.counts.graphs == 0
    for fast in others:
        assert fast.losses == pytest.approx(eager.losses, rel=1e-5)
        assert (fast.messages, fast.sent_bytes) == (eager.messages, eager.sent_bytes)
        assert (fast.counts.graphs, fast.counts.breaks, fast.same_names) == (1, 0, True)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_at_the_limit_a_new_shape_runs_uncompiled_or_fails(fullgraph):
    limit = torch._dynamo.config.recompile_limit
    with compiled.counted() as counts:
        double = torch.compile(lambda x: x * 2, backend="aot_eager", dynamic=False, fullgraph=fullgraph)
        for n in range(1, limit + 1):
            double(torch.ones(n + 1))
        counts.read()
        assert counts.graphs == limit
        if fullgraph:
            with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit, match="fullgraph=True"):
                double(torch.ones(limit + 2))
        else:
            assert double(torch.ones(limit + 2)).sum() == 2 * (limit + 2)
    assert counts.graphs == limit


def test_a_deeper_model_compiles_in_the_same_graph():
    operations = [compiled.compile_seconds(depth, compiled.compile_blocks, repeats=1)[1].operations for depth in (1, 3)]
    assert operations[0] == operations[1] > 0


class Gathered(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.gather = partial(all_gather_tensor_autograd, gather_dim=0, group=dist.group.WORLD.group_name)
        self.factor = factor

    def forward(self, shard):
        return self.gather(shard) * self.factor


def simple_fsdp(factor, model):
    for module in list(model.blocks.modules()):
        if isinstance(module, nn.Linear):
            mine = module.weight.detach().chunk(dist.get_world_size())[dist.get_rank()]
            module.weight = nn.Parameter(mine.clone())
            register_parametrization(module, "weight", Gathered(factor), unsafe=True)


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (1.1, False)])
def test_gathers_in_the_graph_give_the_gradients_of_the_whole_model(factor, right):
    found = launch(graph_collectives.step, 2, partial(simple_fsdp, factor), device="cpu")[0]
    assert (found.loss_error < 1e-5 and found.gradient_error < 1e-4) == right
    gathers = 7 * graph_collectives.CONFIG.n_layers
    assert found.counts()["all_gathers in forward"] == found.counts()["reduce_scatters in backward"] == gathers


@pytest.mark.night
def test_inductor_trains_as_the_eager_job_does():
    ways = {"eager": shard, "inductor": partial(blocks_then_shard, backend="inductor")}
    eager, fast = launch(compiled.train_each, 2, ways, device="cpu", timeout_s=300)[0].values()
    assert fast.losses == pytest.approx(eager.losses, rel=1e-4)
    assert (fast.messages, fast.sent_bytes) == (eager.messages, eager.sent_bytes)
    assert (fast.counts.graphs, fast.counts.breaks) == (1, 0)
