"""The check of lesson 15b's exercise: each rank's list of actions under 1F1B."""

from collections.abc import Callable

from shardsim.pipeline_schedules import Action, gpipe, in_flight, pipeline_timelines

Schedule = Callable[[int, int, int], list[tuple[str, int]]]


def problems(schedule: Schedule) -> list[str]:
    """Return what is wrong with a reader's `schedule(rank, p, m)`, in words; an empty list if nothing is."""
    for p, m in ((4, 8), (4, 2), (1, 3), (3, 3)):
        where = f"{p} ranks, {m} micro-batches"
        lists = [[Action(kind, rank, i) for kind, i in schedule(rank, p, m)] for rank in range(p)]
        for rank, actions in enumerate(lists):
            if sorted(actions) != sorted(gpipe(rank, p, m)):
                return [f"{where}: rank {rank} must do each micro-batch's forward and backward exactly once"]
        try:
            end_s = max(t.end_s for t in pipeline_timelines(lists, 1, 2))
        except ValueError as error:
            return [f"{where}: {error}"]
        if end_s > 3 * (m + p - 1):
            return [f"{where}: the step takes {end_s:.0f}, and {3 * (m + p - 1)} are possible: a rank waits too often"]
        for rank, actions in enumerate(lists):
            if (most := in_flight(actions)) > min(m, p - rank):
                return [f"{where}: rank {rank} keeps {most} micro-batches at once: {min(m, p - rank)} are enough"]
    return []
