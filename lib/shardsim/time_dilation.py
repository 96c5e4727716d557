"""The scaling law: a small model on slow ranks behaves as a large one on a cluster, if the network is slowed to match.

A schedule is made of two kinds of time: computation, and messages of alpha + bytes / bandwidth. Let the stand-in's
computation take `dilation` times as long as the real one's, and each of its messages have `byte_ratio` times as many
bytes. Make every latency `dilation` times as long, and every bandwidth `byte_ratio / dilation` times as high. Then

    alpha'                              = dilation * alpha
    bytes' / bandwidth'                 = byte_ratio * bytes / (bandwidth * byte_ratio / dilation)
                                        = dilation * bytes / bandwidth

Every time of the schedule is `dilation` times as long, and so are their sums, their maxima and the schedule itself. The
same share of each message stays overlapped or exposed, and the best bucket is `byte_ratio` times the real job's.

This holds for as many messages as the real job has: the stand-in needs as many layers, for as many messages from FSDP,
and as many ranks, for the same (N-1)/N. With fewer layers, each stands for several but pays the latencies of one.

Source: Buckingham 1914 (similarity); dimensional analysis shows that only ratios of times matter. Gupta et al. 2006
("To infinity and beyond: time-warped network emulation") call the factor time dilation.
"""

from dataclasses import dataclass

from shardlab.model import ModelConfig
from shardsim.machines import Machine, machine
from shardsim.network import Network

REAL_BYTES_PER_PARAM, BYTES_PER_PARAM = 2, 4  # on the wire: bf16 in the real job, float32 on a CPU


@dataclass(frozen=True)
class Imitation:
    """A stand-in for a job. On `network` its times are `dilation` times the real ones, its bytes `byte_ratio` times."""

    machine: Machine
    real_network: Network
    network: Network
    real_step_s: float  # computation alone
    step_s: float
    byte_ratio: float
    n_layers: int  # of the stand-in

    @property
    def dilation(self) -> float:
        return self.step_s / self.real_step_s

    @property
    def forward_s(self) -> float:
        """Seconds of each block of the stand-in; the embedding's and output's time is spread over the blocks."""
        return self.step_s / 3 / self.n_layers

    @property
    def backward_s(self) -> float:
        return 2 * self.forward_s

    def real_s(self, seconds: float) -> float:
        """Convert the stand-in's seconds to the real job's."""
        return seconds / self.dilation

    def real_bytes(self, n_bytes: float) -> float:
        return n_bytes / self.byte_ratio


def imitate(
    name: str,
    model: ModelConfig,
    *,
    tokens: int,
    seq_len: int,
    stand_in: ModelConfig,
    step_s: float,
    nodes: int,
    ranks_per_node: int,
) -> Imitation:
    """Let `stand_in`, whose computation takes `step_s` a step, stand for `model` on machine `name`.

    `tokens` is the number that a rank of the real job computes in a step, in sequences of `seq_len`. `step_s` is either
    measured, with real computation and no network, or chosen, for slept computation (`slept_computation.sleep_in`).

    Raises ValueError if the machine has fewer GPUs in a node than `ranks_per_node`.
    """
    original = machine(name)
    if ranks_per_node > original.gpus_per_node:
        raise ValueError(f"{name} has {original.gpus_per_node} GPUs in a node, not {ranks_per_node}: use more nodes")
    real_step_s = tokens * flops_per_token(model, seq_len) / original.compute_flops
    byte_ratio = BYTES_PER_PARAM * stand_in.n_params / (REAL_BYTES_PER_PARAM * model.n_params)
    dilation = step_s / real_step_s
    real = Network.parse(f"{name}, {nodes}x{ranks_per_node} nodes", nodes * ranks_per_node)
    network = real.scaled(latency=dilation, bandwidth=byte_ratio / dilation)
    return Imitation(original, real, network, real_step_s, step_s, byte_ratio, stand_in.n_layers)


def flops_per_token(model: ModelConfig, seq_len: int) -> float:
    """FLOPs of forward and backward: 6 for each weight that is multiplied with, and causal attention's two products.

    Source: Kaplan et al. 2020, table 1; backward is twice the forward; attention is halved, as half of it is masked.
    """
    looked_up = 0 if model.tied else model.vocab_size * model.dim  # an embedding is looked up, not multiplied with
    return 6 * (model.n_params - looked_up) + 6 * model.n_layers * model.dim * seq_len
