"""The time of a step: what each unit computes and sends, ordered by `shardsim.step_schedules`.

    kernels                      how long a unit computes, forward and backward      products, attention, memory-bound
    collectives                  how long each of its collectives takes, alone       at the bandwidths that NCCL reaches
    micro_batch, data_parallel   what waits for what in a micro-batch's timeline     what is overlapped, what is exposed
    exposed                      exposed communication, by message
    step                         micro-batches, the pipeline's bubble, the optimizer, offloading, launches

[Note: pipeline] In 1F1B the first micro-batch passes p-1 stages before the last stage can begin, and its gradient
passes them back: a bubble of p-1 micro-batches' time. With v virtual stages a rank, interleaved, a stage takes 1/v of
that time, so the bubble is 1/v as long. The slowest stage sets the pace.

Zero-bubble schedules split a backward in two: B, the input's gradient, is sent at once; W, the weights', fills the
bubble later. Of p-1 times F + B + W, ZB-H1 leaves F + B - W, and ZB-H2, which keeps twice as many micro-batches, F + B
- 2W. H2's ranks begin the next step without waiting for each other, so norms are checked afterwards.
Source: Narayanan et al. 2021, section 2.2; Qi et al. 2023, "Zero Bubble Pipeline Parallelism", table 2, section 4.

[Note: launches] The host runs ahead of the GPU and launches one kernel after the other. If the launches take longer
than the GPU's work, the GPU waits.
"""

from shardplan.flops import hardware_flops, model_flops
from shardplan.planned_job import Setup
from shardplan.records import SpeedPlan
from shardplan.speed import achievable, muon
from shardplan.speed.collectives import all_s, seconds
from shardplan.speed.data_parallel import after_backward_s
from shardplan.speed.exposed import waits_s
from shardplan.speed.kernels import peak_flops, weight_gradients_s
from shardplan.speed.micro_batch import micro_batches
from shardplan.speed.offloading import offload_s
from shardplan.speed.spread import range_s
from shardplan.speed.updating import optimizer_launches, optimizer_s
from shardplan.stage_parameters import Stage, stages
from shardplan.strategy import SCHEDULES
from shardplan.traffic import bytes_by_link
from shardplan.traffic.eight_bits import after_update
from shardplan.traffic.model_parallel import pipeline_parallel, tied_matrix
from shardtrace.timeline import Timeline


def speed_plan(setup: Setup) -> SpeedPlan:
    """Plan the speed of the slowest stage, which sets the pace."""
    slowest = max((_stage(setup, stage) for stage in stages(setup)), key=lambda found: sum(found[0].values()))
    s = setup.strategy
    *found, attention_s = slowest
    return SpeedPlan(
        *found,
        bytes_by_link=bytes_by_link(setup),
        tokens=setup.tokens * s.accumulation / (s.tensor * s.pipeline),
        model_flops=model_flops(setup),
        hardware_flops=hardware_flops(setup),
        peak_flops=peak_flops(setup),
        range_s=range_s(setup, found[0], attention_s),
    )


def _stage(setup: Setup, stage: Stage) -> tuple[dict[str, float], dict[str, float], Timeline, float]:
    """Return a stage's parts, its waits, the timeline of its last micro-batch, and a step's seconds of attention."""
    n, batches = setup.strategy.accumulation, micro_batches(setup, stage)
    computed_s, exposed_s = sum(k * b.computed_s for k, b in batches), sum(k * b.exposed_s for k, b in batches)
    streamed_s = sum(k * b.offload_s for k, b in batches)
    late_s = sum(k * max(0.0, launch_s(setup, b.launches) - b.timeline.duration_s) for k, b in batches)
    update_s, unhidden_s = optimizer_s(setup, stage), after_backward_s(setup, stage) + muon.messages_s(setup, stage)
    unhidden_s += all_s(setup, after_update(setup, stage))
    tied_s = all_s(setup, tied_matrix(setup, stage))
    parts_s = {
        "computation": computed_s,
        "exposed communication": exposed_s + unhidden_s + tied_s,
        "optimizer": update_s,
        "offload": streamed_s + offload_s(setup, stage),
        "bubble": bubble_s(setup, stage, (computed_s + exposed_s + streamed_s) / n),
        "launch": late_s + max(0.0, launch_s(setup, optimizer_launches(setup, stage)) - update_s),
    }
    waits, attention_s = waits_s(setup, batches, unhidden_s, tied_s), sum(k * b.attention_s for k, b in batches)
    return parts_s, waits, batches[-1][1].timeline, attention_s


def bubble_s(setup: Setup, stage: Stage, micro_batch_s: float) -> float:
    """Seconds of the pipeline's bubble: see [Note: pipeline]."""
    hops_s = sum(2 * seconds(setup, send) for send in pipeline_parallel(setup))
    times = SCHEDULES[setup.strategy.schedule][0]
    filled_s = times * weight_gradients_s(setup, stage.n_blocks, stage.last) if times else 0.0
    left_s = max(0.0, micro_batch_s / setup.strategy.virtual_stages - filled_s)
    return (setup.strategy.pipeline - 1) * (left_s + hops_s)


def launch_s(setup: Setup, launches: float) -> float:
    """Seconds in which the host launches: see [Note: launches]."""
    return launches * achievable.LAUNCH_S * (achievable.COMPILED_LAUNCH if setup.strategy.compile else 1)
