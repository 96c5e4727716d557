"""A test of the simulated network: each effect that it should show is predicted, and measured on real ranks.

Predictions are arithmetic (`interconnect_predictions`). Measurements are steps of torch's DDP and FSDP, and of ours
(`interconnect_runs`), on imitated machines: a stand-in of 0.4 million parameters on four CPU ranks, whose network is
slowed until communication and computation have the same ratio as on the real machine.

It also compares NCCL's cost, as `shardsim.closed_forms` has it, with published timings (`published_collectives`).

A row holds the `predicted` and the `measured` value, in seconds, bytes or shares, and their `ratio`.
"""

from statistics import median

from shardbench import environment, published_collectives
from shardbench.interconnect_predictions import cluster, held_bytes, predicted_ddp, predicted_fsdp, predicted_real_ddp
from shardbench.interconnect_runs import STAND_IN, Variant, collective_times, losses, memory, overhead, step_times
from shardbench.interconnect_table import show as show
from shardlab import launch
from shardlab.model import preset
from shardsim import closed_forms, simulated
from shardsim.network import Network
from shardsim.time_dilation import Imitation, imitate
from shardtrace.timeline import Timeline

WORLD_SIZE = 4
TOPOLOGIES = {  # slow links, so that this machine's own cost of about 1 ms for a collective is small in comparison
    "1x4": "40 MB/s, 15 ms",
    "2x2, a shared card": "2x2 nodes, 80 MB/s 15 ms inside, 20 MB/s 30 ms between",
    "2x2, a card a rank": "2x2 nodes, 80 MB/s 15 ms inside, 20 MB/s 30 ms between a rank",
}
KINDS = {  # the collectives that an algorithm changes
    "ring": ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all"),
    "tree": ("all_reduce",),
    "halving-doubling": ("all_reduce",),
    "hierarchical": ("all_gather", "reduce_scatter", "all_reduce"),
}
SIZES_BYTES = (1 << 10, 1 << 18, 1 << 20)
CAPS_BYTES = tuple(1 << i for i in range(14, 22))
# Imitated jobs: machine, nodes, ranks in a node, model, and tokens of a rank in a step.
BUCKETED = (("dgx-h100", 2, 2, "60M", 2048), ("cloud-25gbe", 2, 2, "60M", 8192))
SHARDED = ("dgx-a100", 2, 2, "1B", 4096)
SLOW_OUTSIDE = ("pcie-box", 2, 2, "1B", 4096)
DILATED_STEP_S = (0.3, 0.6, 1.2)
BUCKET_STEP_S, SHARDED_STEP_S = 0.5, 1.2  # seconds of computation alone


def run(rounds: int = 3, pairs: int = 120, repeats: int = 5) -> dict:
    """Return rows under the names below; `overhead` is a Comparison. Takes about five minutes."""
    before = environment()
    return {
        "benchmark": "interconnect",
        "environment": before,
        "world_size": WORLD_SIZE,
        "stand_in_params": STAND_IN.n_params,
        "truth": [row for topology in TOPOLOGIES for row in truth(topology, repeats)],
        "buckets": [buckets(imitated, rounds) for imitated in BUCKETED],
        "scaling_law": scaling_law(rounds),
        **overlap_and_prefetch(rounds),
        "hybrid": hybrid(rounds),
        "overhead": launch(overhead, WORLD_SIZE, "3M", pairs, 2, 128, device="cpu")[0],
        "unchanged": unchanged(),
        "published": published_collectives.rows(),
    }


def truth(topology: str, repeats: int, sizes_bytes: tuple[int, ...] = SIZES_BYTES) -> list[dict]:
    """Time every collective, size and algorithm: wall-clock seconds from the last rank's call to the last return."""
    algorithms = [a for a in KINDS if topology != "1x4" or a != "hierarchical"]
    return [row for algorithm in algorithms for row in _truth(topology, algorithm, repeats, sizes_bytes)]


def _truth(topology: str, algorithm: str, repeats: int, sizes_bytes: tuple[int, ...]) -> list[dict]:
    words = f"{TOPOLOGIES[topology]}, {algorithm}"
    c = cluster(Network.parse(words, WORLD_SIZE))
    ranks = launch(
        collective_times, WORLD_SIZE, KINDS[algorithm], sizes_bytes, repeats, device="cpu", network=simulated(words)
    )
    rows = []
    for of_ranks in zip(*ranks, strict=True):
        kind, size, _ = of_ranks[0]
        measured = median(map(_wall_s, zip(*(spans for *_, spans in of_ranks), strict=True)))
        predicted = getattr(closed_forms, f"{kind}_s")(c, size, algorithm)
        where = {"topology": topology, "algorithm": algorithm, "kind": kind, "full_bytes": size}
        rows.append(_row(f"{kind} {size} B, {algorithm}, {topology}", predicted, measured, **where))
    return rows


def _wall_s(spans: tuple[tuple[float, float], ...]) -> float:
    issued, returned = zip(*spans, strict=True)
    return max(returned) - max(issued)


def buckets(imitated: tuple[str, int, int, str, int], rounds: int) -> dict:
    """Measure torch's DDP over a grid of bucket caps, each twice the last. The optima are indices in that grid."""
    imitation = _imitate(*imitated, BUCKET_STEP_S)
    predicted = [predicted_ddp(imitation, cap).end_s for cap in CAPS_BYTES]
    measured = _measure(imitation, [Variant("DDP", bucket_bytes=cap) for cap in CAPS_BYTES], rounds)
    machine, nodes, ranks_per_node, model, tokens = imitated
    return {
        "imitated": f"{model} on {machine}, {nodes}x{ranks_per_node}, {tokens} tokens a rank",
        "dilation": imitation.dilation,
        "rows": [
            _row(f"bucket_cap {cap} B", p, m, cap_bytes=cap, real_cap_bytes=imitation.real_bytes(cap))
            for cap, p, m in zip(CAPS_BYTES, predicted, measured, strict=True)
        ],
        "predicted_optimum": predicted.index(min(predicted)),
        "measured_optimum": measured.index(min(measured)),
    }


def scaling_law(rounds: int) -> list[dict]:
    """Imitate one job more and more slowly. Compare its real step time as predicted and as scaled from each run."""
    rows = []
    for step_s in DILATED_STEP_S:
        imitation, cap_bytes = _imitate(*BUCKETED[0], step_s), CAPS_BYTES[4]
        (measured_s,) = _measure(imitation, [Variant("DDP", bucket_bytes=cap_bytes)], rounds)
        there_s = predicted_real_ddp(imitation, cap_bytes).end_s
        what = f"{imitation.dilation:.0f} times as slow"
        rows.append(_row(what, there_s, imitation.real_s(measured_s), dilation=imitation.dilation))
    return rows


def overlap_and_prefetch(rounds: int) -> dict:
    """Measure `overlap`, the hidden share of what could be hidden, and `prefetch`, the gain by FSDP2's prefetch."""
    imitation, cap_bytes = _imitate(*SHARDED, SHARDED_STEP_S), CAPS_BYTES[0]
    variants = {
        "DDP": Variant("DDP", bucket_bytes=cap_bytes),
        "DDP, blocking": Variant("DDP", bucket_bytes=cap_bytes, overlap=False),
        "FSDP2, blocking": Variant("FSDP", overlap=False),
    }
    for library in ("torch", "ours"):
        variants |= {(library, yes): Variant("FSDP", library, backward_prefetch=yes) for yes in (True, False)}
    measured = dict(zip(variants, _measure(imitation, variants.values(), rounds), strict=True))
    with_it = predicted_fsdp(imitation, host_runs_ahead=True)
    none_s = predicted_fsdp(imitation, host_runs_ahead=True, backward_prefetch=0).end_s
    prefetch = []
    for library in ("torch", "ours"):
        step_s, without_s = measured[library, True], measured[library, False]
        prefetch += [
            _row(f"{library}: a step with prefetch", with_it.end_s, step_s),
            _row(f"{library}: a step without", none_s, without_s),
            _row(f"{library}: gained", none_s - with_it.end_s, without_s - step_s),
        ]
    overlap = [
        _hidden("torch's DDP", predicted_ddp(imitation, cap_bytes), measured["DDP, blocking"] - measured["DDP"]),
        _hidden("torch's FSDP2", with_it, measured["FSDP2, blocking"] - measured["torch", True]),
    ]
    return {"overlap": overlap, "prefetch": prefetch}


def _hidden(what: str, step: Timeline, gained_s: float) -> dict:
    """Return a row of hidden shares. At most min(communication, computation) can be hidden."""
    could_s = min(step.communication_s, step.compute_s)
    return _row(what, step.overlapped_s / could_s, gained_s / could_s, could_be_hidden_s=could_s)


def hybrid(rounds: int) -> list[dict]:
    """Compare HYBRID_SHARD (a copy of the model in each node) with FULL_SHARD: step seconds, bytes held by a rank.

    torch begins a unit's all_reduce when its reduce_scatter ends, as predicted. Ours begins it when the next unit's
    backward has ended, too.
    """
    imitation = _imitate(*SLOW_OUTSIDE, SHARDED_STEP_S)
    engines = [(library, replicas) for library in ("torch", "ours") for replicas in (1, 2)]
    times = _measure(imitation, [Variant("FSDP", library, replicas=n) for library, n in engines], rounds)
    step_s = dict(zip(engines, times, strict=True))
    expected_s = {n: predicted_fsdp(imitation, replicas=n, host_runs_ahead=True).end_s for n in (1, 2)}
    expected_bytes = {n: held_bytes(WORLD_SIZE, n) for n in (1, 2)}
    rows = []
    for library in ("torch", "ours"):
        of_s, of_bytes = {n: step_s[library, n] for n in (1, 2)}, {n: _held(library, n) for n in (1, 2)}
        rows += [
            _row(f"{library}: FULL_SHARD, s", expected_s[1], of_s[1], library=library),
            _row(f"{library}: HYBRID_SHARD, s", expected_s[2], of_s[2], library=library),
            _row(f"{library}: step, HYBRID / FULL", expected_s[2] / expected_s[1], of_s[2] / of_s[1], library=library),
            _row(f"{library}: FULL_SHARD, bytes", expected_bytes[1], of_bytes[1], library=library),
            _row(f"{library}: HYBRID_SHARD, bytes", expected_bytes[2], of_bytes[2], library=library),
        ]
    return rows


def _held(library: str, replicas: int) -> int:
    return max(sum(held.values()) for held in launch(memory, WORLD_SIZE, library, replicas, device="cpu"))


def unchanged(steps: int = 3) -> list[dict]:
    """Check for each engine that losses on the simulated network equal those on gloo bit by bit, on every rank."""
    gloo = launch(losses, WORLD_SIZE, steps, device="cpu")
    cluster = simulated("2x2 nodes, 1 GB/s inside, 100 MB/s between")
    on_it = launch(losses, WORLD_SIZE, steps, device="cpu", network=cluster)
    same = {name: all(a[name] == b[name] for a, b in zip(gloo, on_it, strict=True)) for name in gloo[0]}
    return [{"what": name, "equal": equal} for name, equal in same.items()]


def _row(what: str, predicted: float, measured: float, **more) -> dict:
    return {"what": what, "predicted": predicted, "measured": measured, "ratio": measured / predicted, **more}


def _imitate(machine: str, nodes: int, ranks_per_node: int, model: str, tokens: int, step_s: float) -> Imitation:
    size = {"tokens": tokens, "seq_len": min(tokens, 1024), "step_s": step_s}
    return imitate(machine, preset(model), stand_in=STAND_IN, nodes=nodes, ranks_per_node=ranks_per_node, **size)


def _measure(imitation: Imitation, variants, rounds: int) -> list[float]:
    """Return the median step time of each variant."""
    args = (tuple(variants), imitation.forward_s, imitation.backward_s, rounds)
    ranks = launch(step_times, WORLD_SIZE, *args, device="cpu", network=simulated(imitation.network))
    return [median(times) for times in ranks[0]]
