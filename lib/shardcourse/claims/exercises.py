"""The exercises of page 003, section 11, answered by the planner. The page gives no answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from shardcourse.claims import api, held, seconds, sent
from shardcourse.claims.claim import Findings
from shardcourse.claims.table import in_words

_FEW_TOKENS = {"seq_len": 2048, "recompute": "full"}


@dataclass(frozen=True)
class Exercise:
    question: str
    found: dict[str, Findings]  # by the question to the planner
    answer: str


def exercises() -> list[Exercise]:
    """Return all five exercises, in the page's order."""
    return [memory(), volume(), hybrid(), bucket(), engine()]


def exercises_table(exercises: Sequence[Exercise]) -> Table:
    """Return a table of the questions, the planner's findings and the answers in words."""
    table = Table(box=box.SIMPLE, title="the page's exercises, answered", show_header=False)
    table.add_column("", ratio=1)
    for number, exercise in enumerate(exercises, 1):
        listed = {
            what: "; ".join(f"{when} {in_words(v)}".removeprefix("as planned ") for when, v in of.items())
            for what, of in exercise.found.items()
        }
        found = [f"{what}: {words}" for what, words in listed.items()]
        table.add_row("\n".join([f"[bold]{number}. {exercise.question}[/]", *found, f"[dim]{exercise.answer}[/]"]))
    return table


def memory() -> Exercise:
    job = {"model": "llama-2-13b", "machine": "A100-40GB x 8", "gpus": 8}
    ddp, full = {"sharding": "DDP", "precision": "bf16-master"}, {"sharding": "FULL_SHARD"}
    return Exercise(
        "13B on 8 A100-40GB: how much does a GPU hold under DDP, how much with FULL_SHARD?",
        {
            "states, GB": _named(held.states, {"DDP": ddp, "FULL_SHARD": full | {"precision": "bf16-mixed"}}, **job),
            "at the peak, GB": _named(held.peak, {"DDP": ddp, "FULL_SHARD": full}, **job, **_FEW_TOKENS),
            "fits": _named(held.fits, {"DDP": ddp, "FULL_SHARD": full}, **job, **_FEW_TOKENS),
        },
        "16 bytes a parameter on every GPU, against an eighth of them. What is left of 40 GB is for gathered blocks, "
        "activations and the allocator: recompute, and keep micro-batches small.",
    )


def volume() -> Exercise:
    precisions = {name: {"precision": name} for name in ("bf16-mixed", "bf16-mixed-bf16-reduce")}
    job = {"model": "70B", "machine": "dgx-h100", "gpus": 8}
    return Exercise(
        "70B, FULL_SHARD on 8 GPUs: how many bytes does a GPU send in a step?",
        {
            "FULL_SHARD, GB": _named(sent.volume, precisions, **job, sharding="FULL_SHARD"),
            "times DDP's bytes": _named(sent.beside, precisions, **job, sharding="FULL_SHARD", other="DDP"),
        },
        "7/8 of the bf16 weights twice (the root's once), and 7/8 of the gradients once, in the precision that they "
        "are reduced in. DDP sends 7/8 of such gradients twice.",
    )


def hybrid() -> Exercise:
    ways = {"FULL_SHARD over all": {}, "HYBRID_SHARD": {"shard_size": 8}}
    job = {"machine": "dgx-h100", "gpus": 32, "sharding": "FULL_SHARD", **_FEW_TOKENS}
    return Exercise(
        "4 nodes of 8 GPUs, NVLink inside, InfiniBand between: which strategy?",
        {
            "8B fits": _named(held.fits, ways, model="8B", **job),
            "8B, s a step": _named(seconds.step, ways, model="8B", **job),
            "70B fits": _named(held.fits, ways, model="70B", **job),
        },
        "Ask first whether a node can hold a copy of the model: 70B's states need more than 8 GPUs, so they must be "
        "sharded over all. For a model that fits a node, compare the steps: with a fast card for each GPU both are "
        "about as fast, and FULL_SHARD needs less.",
    )


def bucket() -> Exercise:
    job = {"machine": "dgx-a100", "gpus": 64, "sharding": "DDP", "precision": "fp32", "seq_len": 2048}
    caps = {f"{cap:g} MB": {"bucket_cap_mb": cap} for cap in seconds.CAPS_MB}
    return Exercise(
        "Llama 3 8B on an A100 cluster: the best bucket_cap_mb?",
        {
            "8B fits under DDP": held.fits("8B", **job),
            "1B, s a step": _named(seconds.step, caps, model="1B", **job),
        },
        "None: 8B with AdamW does not fit an A100 under DDP, and FSDP has no buckets but units. For 1B, which fits, "
        "the cap hardly matters: backward hides all buckets but the last.",
    )


def engine() -> Exercise:
    job = {"machine": "dgx-h100", "gpus": 1024, "sharding": "FULL_SHARD", "seq_len": 8192, "recompute": "full"}
    ways = {"FSDP alone": {}, "FSDP with TP of 8": {"tensor": 8}}
    return Exercise(
        "A model of 400B: DeepSpeed or FSDP?",
        {
            "torch itself has": api.beyond_data_parallel(),
            "405B fits on 1,024 H100": _named(held.fits, ways, model="405B", **job),
        },
        "Either. What decides is no longer a feature: torch has tensor, pipeline and context parallelism, too.",
    )


def _named(check, ways: dict[str, dict], **given) -> Findings:
    """Return the check's first finding for each of the ways."""
    return {name: next(iter(check(**given, **way).values())) for name, way in ways.items()}
