"""The input of a submission: a model whose computation is slept, and facts of a cluster, drawn at grading time."""

import random
from dataclasses import dataclass

import torch
from torch import nn

from shardlab.model import ModelConfig, Transformer
from shardsim.network import Network
from shardsim.slept_computation import sleep_in

RANKS = 8
MB = 1e6
# For each cluster (nodes x cards a node) and figure: its ranges, and how often each is drawn, beside the others. They
# lie so that no figure alone says which strategy is best.
BUDGETS: dict[str, dict[str, dict[tuple[float, float], int]]] = {
    "2x4": {
        "memory_MB": {(3.25, 3.37): 1, (3.94, 4.05): 1},
        "sequence_ms": {(8, 12): 1},
        "launch_over_sequence": {(0.02, 0.04): 1, (1.6, 2.4): 1},
        "link_kB_per_sequence": {(13, 16): 1, (300, 400): 2},
    },
    "4x2": {
        "memory_MB": {(2.6, 2.8): 1, (3.25, 3.5): 3},
        "sequence_ms": {(8, 12): 1},
        "launch_over_sequence": {(0.02, 0.04): 1, (1.6, 2.4): 1},
        "link_kB_per_sequence": {(13, 16): 1, (300, 400): 2},
    },
    "8x1": {
        "memory_MB": {(3.25, 3.57): 3, (4.1, 4.4): 1},
        "sequence_ms": {(8, 12): 1},
        "launch_over_sequence": {(0.02, 0.04): 1, (1.6, 2.4): 1},
        "link_kB_per_sequence": {(13, 16): 1, (300, 400): 2},
    },
}
MODEL = ModelConfig(256, dim=64, n_layers=4, n_heads=4, n_kv_heads=2, hidden_dim=192, max_seq_len=32)
SEQUENCES, SEQ_LEN = 4, 32  # a rank's, in a step


@dataclass(frozen=True)
class Job:
    """The job that `configure` gets. The notebook shows the same class."""

    network: Network
    memory_bytes: int
    sequences: int
    seq_len: int
    launch_s: float
    sequence_s: float


def draw(seed: int) -> dict[str, dict]:
    """Draw the facts of each cluster, in a form for JSON."""
    return {name: _facts(name, random.Random(f"{seed} {name}")) for name in BUDGETS}


def _facts(name: str, random: random.Random) -> dict:
    spans = (random.choices(list(by_span), list(by_span.values()))[0] for by_span in BUDGETS[name].values())
    memory_MB, sequence_ms, launch, link_kB = (random.uniform(*span) for span in spans)
    between = link_kB / sequence_ms  # kB a ms are MB a s
    return {
        "network": f"{name} nodes, {8 * between:.2f} MB/s 80 us inside, {between:.2f} MB/s 300 us between",
        "memory_bytes": int(memory_MB * MB),
        "launch_s": round(launch * sequence_ms / 1e3, 5),
        "sequence_s": round(sequence_ms / 1e3, 5),
    }


def job_of(facts: dict) -> Job:
    network = Network.parse(facts["network"], RANKS)
    return Job(**facts | {"network": network}, sequences=SEQUENCES, seq_len=SEQ_LEN)


def build_model(job: Job, seed: int) -> Transformer:
    """Build a model with equal weights on every rank, whose computation takes the time of the job's cards."""
    torch.manual_seed(seed)
    model = Transformer(MODEL)
    for i, block in enumerate(model.blocks):
        take_time(block.attention, 0.25, job, f"blocks.{i}.attention")
        take_time(block.feed_forward, 0.75, job, f"blocks.{i}.feed_forward")
    return model


def take_time(module: nn.Module, share: float, job: Job, name: str) -> None:
    """Make `module` take its share of a block's time, for as many sequences as it gets."""
    sleep = sleep_in(module, 0.0, name=name)

    def set_time(module, args):
        sequences = args[0].shape[0] * args[0].shape[1] / job.seq_len
        sleep.forward_s = share * (job.launch_s + sequences * job.sequence_s)
        sleep.backward_s = 2 * sleep.forward_s

    module.register_forward_pre_hook(set_time)
