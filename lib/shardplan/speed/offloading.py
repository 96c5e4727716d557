"""Extra time of a step if parameters, gradients and optimizer states are on the host or on its drives.

    gather     a unit's shard comes to the GPU before each all_gather      shard / port
    reduce     its gradients leave after each reduce_scatter               shard / port
    update     the host reads and writes what the optimizer needs          bytes / (its memory's bandwidth / GPUs)
    activations   a block's leave beside the next block's forward, and come beside backward: the slower counts
    drives     parameters are read for each gather; the optimizer reads    bytes / (the drives' bandwidth / GPUs)
               and writes parameters and states

Reading from the drives overlaps with the transfer to the GPU or with the optimizer: the slower of the two counts. If
parameters are not sharded, only the optimizer is on the host: gradients go out and parameters come in, once a step.

Source: Ren et al. 2021, "ZeRO-Offload", section 4; Rajbhandari et al. 2021, "ZeRO-Infinity", section 5.
"""

from shardplan.activations.away import kept_bytes
from shardplan.activations.sizes import Chosen
from shardplan.memory.states import shards_of_states
from shardplan.planned_job import Setup
from shardplan.speed import achievable
from shardplan.speed.updating import updated_bytes_each
from shardplan.stage_parameters import Stage, Weight
from shardplan.traffic.host import shard_bytes, updated_bytes


def stream_s(setup: Setup, weights: tuple[Weight, ...]) -> tuple[float, float]:
    """Seconds before each all_gather, and after each reduction, of one unit."""
    if setup.strategy.offload == "none" or not setup.strategy.sharded[0]:
        return 0.0, 0.0
    fetched = shard_bytes(setup, weights)
    from_drive_s = fetched / _drives(setup)[0] if setup.strategy.offload == "nvme" else 0.0
    brought_s = shard_bytes(setup, weights, gradients=True) / setup.machine.host.bandwidth_bytes_per_s
    return max(from_drive_s, fetched / setup.machine.host.bandwidth_bytes_per_s), brought_s


def activations_s(setup: Setup, recomputed: bool) -> float:
    """Seconds in which what a block keeps goes to the host, or comes back."""
    if not setup.strategy.offload_activations:
        return 0.0
    return kept_bytes(Chosen.of(setup), recomputed) / setup.machine.host.bandwidth_bytes_per_s


def offload_s(setup: Setup, stage: Stage) -> float:
    """Seconds after backward: the update, and the transfers for it alone."""
    s = setup.strategy
    if s.offload == "none":
        return 0.0
    update_s = updated_bytes_each(setup) * sum(shards_of_states(setup, stage)) / _host_memory(setup)
    if s.offload == "nvme":
        n_bytes, (read, write) = updated_bytes(setup, stage.weights), _drives(setup)
        update_s = max(update_s, n_bytes / read + n_bytes / write)
    if setup.strategy.sharded[0]:
        return update_s
    out, back = shard_bytes(setup, stage.weights, gradients=True), shard_bytes(setup, stage.weights)
    return update_s + (out + back) / setup.machine.host.bandwidth_bytes_per_s


def _gpus(setup: Setup) -> int:
    """Number of GPUs that share a host."""
    return min(setup.machine.gpus_per_node, setup.world_size)


def _host_memory(setup: Setup) -> float:
    return achievable.HOST_MEMORY * setup.machine.host_memory_bandwidth / _gpus(setup)


def _drives(setup: Setup) -> tuple[float, float]:
    """A GPU's part of the drives' bandwidth, reading and writing."""
    return setup.machine.nvme_read / _gpus(setup), setup.machine.nvme_write / _gpus(setup)
