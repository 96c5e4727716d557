"""Memory that nvidia-smi shows beyond the bytes of tensors: the caching allocator's reserve, and memory outside of it.

[Note: reserved] The allocator takes segments from the driver and keeps them. Each CUDA stream has its own pool: memory
freed in one can't serve another. FSDP2 allocates the all_gathers' outputs in one stream, the reduced gradients in
another, all else in the compute stream. So the reserve is at least the sum of each pool's peak, even if these are at
different moments: gradients count even if the overall peak comes before they are made. (Tensors below 1 MiB share
segments of 2 MiB, others have multiples of 2 MiB; blocks are multiples of 512 bytes. When the driver has no more, the
allocator gives free segments back and tries again, slowly: less can then be reserved than the plan's least, but never
less than is allocated.)

Beyond that, the reserve depends on the program's history: on whether free blocks fit the next request. The plan states
a range, reserved over the sum of pools. Others measured its ends, on runs that the plan is not compared with:

    1.00  none is lost
    1.09  203.5 GB allocated, 221.7 reserved: Megatron-FSDP, 42 layers (NVIDIA/Megatron-LM#6885, 2026-08)
    1.18  15% of the reserve lost on average over eight LLMs with recomputation, ZeRO, offload, LoRA (up to 33%):
          Guo et al. 2024, "GMLake" (ASPLOS)
    1.21  77 GiB allocated, 93 reserved (meta-pytorch/torchrec#4584)

With expandable_segments a stream has one segment, which grows by pages: free neighbours always join, so that only holes
between live blocks are lost, and the range ends at the smallest of these losses, 1.09.

Source: CUDACachingAllocator.cpp; FSDPParamGroup.get_all_gather_streams; pytorch/pytorch#129721 for the streams.

[Note: outside] The CUDA context with its loaded kernels: about 300 MB since CUDA 11.7 loads lazily, above 1 GB before
(pytorch/pytorch#107667). cuBLAS has a workspace for each thread that multiplies, forward's and backward's: 32 MiB each
from Hopper on, else 8.125 (CublasHandlePool.cpp; two of 32 MiB were seen on an H100). They come from the caching
allocator, so that `max_memory_allocated` counts them. A communicator of NCCL on one node of A100: 544 to 688 MB
with the context (NVIDIA/nccl#964), of 8 H100: 1.06 GB before any all_to_all (NVIDIA/nccl#1685); each further one shares
the context. With replicas, tensor, pipeline or context groups there is a communicator for each.
"""

from collections.abc import Sequence
from math import ceil

from shardplan.planned_job import Setup
from shardplan.records import Moment

MIB = 1 << 20
SEGMENT_BYTES = 2 * MIB
WORST, EXPANDABLE = 1.21, 1.09  # the largest and the smallest loss above
CONTEXT_BYTES = 300 * MIB
COMMUNICATOR_BYTES = 388 * MIB  # the larger one of nccl#964, less the context
WORKSPACES_BYTES = 64 * MIB  # the most of any card


def reserved_bytes(moments: Sequence[Moment], *, expandable: bool = False) -> tuple[float, float]:
    """Least and most bytes that the allocator reserves."""
    fullest: dict[str, float] = {}
    for moment in moments:
        for pool, n_bytes in by_pool(moment).items():
            fullest[pool] = max(fullest.get(pool, 0.0), n_bytes)
    least = sum(ceil(n_bytes / SEGMENT_BYTES) * SEGMENT_BYTES for n_bytes in fullest.values())
    return least, least * (EXPANDABLE if expandable else WORST)


def by_pool(moment: Moment) -> dict[str, float]:
    pools: dict[str, float] = {}
    for term in moment.terms:
        pools[term.pool] = pools.get(term.pool, 0.0) + term.n_bytes
    return pools


def context_bytes(setup: Setup) -> float:
    return CONTEXT_BYTES + workspaces_bytes(setup) + communicators(setup) * COMMUNICATOR_BYTES


def workspaces_bytes(setup: Setup) -> float:
    return WORKSPACES_BYTES if setup.machine.gpu.capability >= (9, 0) else 2 * 8.125 * MIB


def communicators(setup: Setup) -> int:
    """Count communicators: one for each group of ranks, of shards, of replicas, and of each further parallelism."""
    s = setup.strategy
    copies = setup.data_ranks // setup.shards
    degrees = (min(setup.shards, setup.data_ranks), copies, s.tensor, s.pipeline, s.context, s.expert)
    return sum(degree > 1 for degree in degrees)
