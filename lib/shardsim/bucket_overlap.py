"""Time at which the last bucket arrives: the arithmetic of overlap, for a link that carries one bucket at a time.

A bucket's all_reduce starts when backward has made its last gradient and the link is free, whichever is later. Large
buckets start late; small ones pay the latency often. Everything about `bucket_cap_mb` follows from these two facts.

Source: Li et al. 2020, section 3.2.2; the ring's cost: Thakur, Rabenseifner & Gropp 2005, section 4.5.
"""

from shardsim.closed_forms import Cluster, all_reduce_s


def ring_all_reduce_s(n_bytes: float, world_size: int, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """Seconds of 2 (N-1) messages of bytes/N, one after another: 2 (N-1) (latency + bytes / N / bandwidth)."""
    return all_reduce_s(Cluster(latency_s, bandwidth_bytes_per_s, ranks_per_node=world_size), n_bytes)


def bucket_timeline(
    assignment: list[int],
    sizes_bytes: list[int],
    ready_s: list[float],
    world_size: int,
    latency_s: float,
    bandwidth_bytes_per_s: float,
) -> list[tuple[float, float]]:
    """Return (start, end) in seconds of each bucket's all_reduce.

    `assignment[i]` is the number of parameters in bucket i. Sizes and ready times are per parameter, in the order
    in which backward makes the gradients. Time 0 is the start of backward.
    """
    spans, first, free_s = [], 0, 0.0
    for count in assignment:
        bucket = slice(first, first + count)
        start = max(free_s, ready_s[first + count - 1])
        free_s = start + ring_all_reduce_s(sum(sizes_bytes[bucket]), world_size, latency_s, bandwidth_bytes_per_s)
        spans.append((start, free_s))
        first += count
    return spans


def finish_time(assignment: list[int], *link_and_gradients, **named) -> float:
    """Seconds from the start of backward until the last bucket has arrived; arguments as for `bucket_timeline`."""
    return bucket_timeline(assignment, *link_and_gradients, **named)[-1][1]
