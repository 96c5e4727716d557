"""Messages of the parallelisms inside a model: tensor, sequence, context, pipeline.

    tensor, sequences cut   a block: 2 all_gathers and 2 reduce_scatters of B T D forward, as many backward
    tensor, whole           a block: 2 all_reduces of B T D forward, 2 backward
    the root                as half a block forward: the embedding's sum, the output layer's input; backward likewise
    context                 a block: keys and values go round the ring; in backward again, and their gradients
    experts                 a block: two all_to_alls of Z B T D forward, to the experts and back, and two backward
                            (less if a token is sent once to a rank that has several of its experts, as DeepEP does)
    pipeline                a stage: B T D to the next one, its gradient back
    tied, in a pipeline     a step: an all_reduce of the matrix's gradient between first and last stage

B T D is a micro-batch's activations. Recomputation repeats forward's messages except a block's last: it stops at the
last product, whose result is unused. ("selective" keeps what reduce_scatters return; "pointwise" recomputes no
product.) An all_reduce is an all_gather and a reduce_scatter: cutting sequences costs no bytes. `gather_again` keeps a
share of what was gathered, and gathers it again for the weights' gradients while the inputs' gradients are computed.
Inputs and gradients that are multiplied in fp8 with one scale are gathered in fp8; sums are scattered as they are, and
memory is planned as if all were gathered in 16 bits. With `gather_each`, queries, keys, values, gate and up each gather
their input, and scatter its gradient: 5 for 2.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2; Liu et al. 2023, "Ring
Attention"; Narayanan et al. 2021, section 2.2; torchao/float8/float8_tensor_parallel.py, for gathers in fp8.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import comb

from shardplan.flops import recomputed_blocks
from shardplan.planned_job import Setup
from shardplan.stage_parameters import Stage
from shardplan.traffic.groups import ends, group
from shardplan.traffic.messages import Send

# For one micro-batch: "forward"; "backward", recomputation included; "hidden", which computation does not wait for
ByPass = dict[str, list[Send]]


def tensor_sends(setup: Setup, recomputed: bool) -> ByPass:
    """Messages of tensor parallelism in one block, for a micro-batch."""
    s = setup.strategy
    if s.tensor == 1:
        return {"forward": [], "backward": [], "hidden": []}
    of_a_recomputed = {"selective": (2, 0), "pointwise": (0, 0)}.get(s.recompute, (2, 1))
    more, each = _more_gathers(setup), 1 if s.products == "fp8" else s.bytes.compute
    gathers, scatters = of_a_recomputed
    again = _pairs(setup, gathers + more * (gathers > 0), scatters, each) if recomputed else []
    hidden = _pairs(setup, 2 + more, 0, each) if s.gather_again and s.sequence_parallel else []
    forward, backward = _pairs(setup, 2 + more, 2, each), _pairs(setup, 2, 2 + more, each)
    return {"forward": forward, "backward": backward + again, "hidden": hidden}


def _more_gathers(setup: Setup) -> int:
    """Number of a block's gathers beyond two, if each product that reads the normed stream gathers it."""
    if not setup.strategy.gather_each or not setup.strategy.sequence_parallel:
        return 0
    return (1 if setup.shape.latent else 2) + (setup.shape.gated and not setup.shape.experts)


def root_tensor_sends(setup: Setup) -> list[Send]:
    """Messages of the embedding, forward and backward, for a micro-batch; the output layer has as many.

    Each rank looks up the tokens of its part of the vocabulary, and the sum is scattered. The output layer's input is
    gathered. Backward does the opposite of each.
    """
    s = setup.strategy
    if s.tensor == 1:
        return []
    n_bytes = setup.tokens * setup.shape.vocab_size * s.bytes.compute
    logits = [] if s.loss_parallel else [Send("all_gather", "logits", group(setup, "tensor"), n_bytes, 1)]
    return _pairs(setup, 1, 1) + logits


def context_sends(setup: Setup, recomputed: bool) -> ByPass:
    """Messages of context parallelism in one block, for a micro-batch."""
    s = setup.strategy
    if s.context == 1:
        return {"forward": [], "backward": []}
    n_bytes = 2 * setup.tokens * setup.shape.kv_dim / s.tensor * s.bytes.compute
    ring = Send("ring", "keys and values", group(setup, "context"), n_bytes, 1)
    again = recomputed and s.recompute == "full"
    gradients = replace(ring, of="gradients of keys and values", full_bytes=n_bytes * 4 / s.bytes.compute)  # fp32 sums
    return {"forward": [ring], "backward": [replace(ring, times=1 + again), gradients]}


def expert_sends(setup: Setup, recomputed: bool) -> ByPass:
    """Messages of expert parallelism in one block with experts: a token goes to each of its Z experts, and back."""
    s = setup.strategy
    if s.expert == 1:
        return {"forward": [], "backward": []}
    n_bytes = setup.routed * setup.shape.dim * s.bytes.compute * (copies_share(setup) if s.once_a_rank else 1)
    both = Send("all_to_all", "tokens to experts and back", group(setup, "expert"), n_bytes, 2)
    again = recomputed and s.recompute in ("full", "selective")
    return {"forward": [both], "backward": [replace(both, times=2 + 2 * again)]}


def copies_share(setup: Setup) -> float:
    """Return how many ranks have experts of a token, over the number of its experts, if all choices are as likely.

    A rank has none of them with the probability that all are among the experts of the others.
    """
    e, ranks = setup.shape.experts, setup.strategy.expert
    none = comb(e.number - e.number // ranks, e.per_token) / comb(e.number, e.per_token)
    return ranks * (1 - none) / e.per_token


def expert_parallel(setup: Setup, stage: Stage) -> Iterable[Send]:
    """Messages of expert parallelism in a step."""
    share = (stage.n_blocks - stage.n_dense) / stage.n_blocks
    return (replace(send, times=share * send.times) for send in _of_blocks(setup, stage, expert_sends))


def tensor_parallel(setup: Setup, stage: Stage) -> Iterable[Send]:
    """Messages of tensor parallelism in a step."""
    yield from _of_blocks(setup, stage, tensor_sends)
    for send in root_tensor_sends(setup):
        yield replace(send, times=send.times * (stage.first + stage.last) * setup.strategy.accumulation)


def context_parallel(setup: Setup, stage: Stage) -> Iterable[Send]:
    """Messages of context parallelism in a step."""
    return _of_blocks(setup, stage, context_sends)


def pipeline_parallel(setup: Setup) -> Iterable[Send]:
    """Messages of a pipeline's busiest stage in a step: activations and gradients; of two stages, each sends one."""
    s = setup.strategy
    if s.pipeline > 1:
        both = s.pipeline > 2 or s.virtual_stages > 1
        times = s.accumulation * s.virtual_stages * (2 if both else 1)
        yield Send("send", "activations of a stage", group(setup, "pipeline"), stage_bytes(setup), times)


def tied_matrix(setup: Setup, stage: Stage) -> Iterable[Send]:
    """Messages of a tied matrix in a step. First and last stage have a copy each: both gradients are summed."""
    s = setup.strategy
    if s.pipeline > 1 and setup.shape.tied:
        n = setup.shards if s.sharded[1] else 1
        for w in stage.root:
            if w.name == "embedding.weight" and w.trained:
                yield Send(
                    "all_reduce", "gradient of the tied matrix", ends(setup), s.bytes.reduce * w.shard_numel(n), 1
                )


def stage_bytes(setup: Setup) -> float:
    """Bytes of a rank's part of the activations that go to the next stage."""
    s = setup.strategy
    return activation_bytes(setup) / (s.tensor if s.sequence_parallel else 1)


def activation_bytes(setup: Setup) -> float:
    """Bytes of B T D, not split over the tensor-parallel ranks."""
    return setup.tokens * setup.shape.dim * setup.strategy.bytes.compute


def _pairs(setup: Setup, gathers: int, scatters: int, each: int = 0) -> list[Send]:
    """Return gathers, with `each` bytes for a number (by default those of the compute dtype), and scatters."""
    kinds = {"all_gather": gathers, "reduce_scatter": scatters}
    if not setup.strategy.sequence_parallel:
        kinds = {"all_reduce": scatters}
    tensor, n_bytes = group(setup, "tensor"), activation_bytes(setup)
    narrower = {"all_gather": (each or setup.strategy.bytes.compute) / setup.strategy.bytes.compute}
    return [Send(kind, "activations", tensor, n_bytes * narrower.get(kind, 1), times) for kind, times in kinds.items()]


def _of_blocks(setup: Setup, stage: Stage, of_one: Callable[[Setup, bool], ByPass]) -> Iterable[Send]:
    again = recomputed_blocks(setup)
    for recomputed, share in ((False, 1 - again), (True, again)):
        for send in sum(of_one(setup, recomputed).values(), []):
            if share:
                yield replace(send, times=send.times * share * stage.n_blocks * setup.strategy.accumulation)
