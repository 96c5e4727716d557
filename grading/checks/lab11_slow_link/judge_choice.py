"""Compare a chosen schedule's seconds to the target's loss with what `choose` says, and with the best one's, by job.

A choice alone shows little: one that counts a wrong wait often chooses as well as a right one. So no points without
right seconds on every job.
"""

import math

from grading.checks.lab11_slow_link.drawn_jobs import H_ALLOWED, MOST_STEPS, Job, draw, job_of
from grading.judge.session import Session
from grading.judge.verdict import Verdict

FULL, HALF = 1.02, 1.10  # times the best schedule's seconds, on the worst job
SECONDS_OFF = 1e-4  # relative; sums in float32 give 1e-6, and wrong waits 0.03 on some job of each of 684 draws


def judge(s: Session, check: str, points: float) -> Verdict:
    jobs = draw(s.seed)
    chosen = s.order(check, "choices", jobs=jobs, world_size=1, device="cpu")[0]
    figures, worst, cause, furthest, wrong = {}, 0.0, "", SECONDS_OFF, ""
    for i, (facts, plan) in enumerate(zip(jobs, chosen, strict=True), 1):
        if fault := _fault(plan):
            return Verdict(check, 0, points, f"job {i}: {fault}", "", figures)
        (H, late, said), job = plan, job_of(facts)
        times = {key: seconds for key, seconds in s.solve("times", facts).items() if seconds}
        best, mine = min(times, key=times.get), times.get(f"{H} {late}", math.inf)
        ratio, off = mine / times[best], _off(said, mine)
        about = f"job {i}, {job.network.nodes} sites, a message of {_message_s(job):.3f} s, steps of {job.step_s:.4f} s"
        figures[f"job {i}: H={H}, late={late}"] = (f"{ratio:.2f} times the best", f"{FULL}")
        if off > furthest:
            furthest, wrong = off, f"{about}: {_wrong(job, plan, mine)}"
        if ratio > worst:
            worst, cause = ratio, f"{about}: {_slow(plan, mine, best, times[best])}"
    earned = points if worst <= FULL else points / 2 if worst <= HALF else 0
    if wrong:
        return Verdict(check, 0, points, wrong, "", figures)
    if earned == points:
        cause = "no schedule reaches any job's target sooner than the one that you chose, and its seconds are right."
    return Verdict(check, earned, points, cause, "", figures)


def _fault(plan) -> str:
    if not isinstance(plan, list):
        return f"`choose` has to return (H, late, seconds), two ints and a number, and returned {plan}."
    H, late, _ = plan
    if H not in H_ALLOWED:
        return f"H={H} is none of {', '.join(map(str, H_ALLOWED))}."
    return "" if 0 <= late < H else f"late={late} does not lie between 0 and H - 1 = {H - 1}."


def _off(said: float, mine: float) -> float:
    """Return by how much the seconds said are off, relatively; 0 where the schedule never reaches the target."""
    if mine == math.inf:
        return 0.0
    return math.inf if math.isnan(said) else abs(said / mine - 1)


def _message_s(job: Job) -> float:
    ranks = range(0, job.network.world_size, job.network.ranks_per_node)
    return job.network.seconds("all_reduce", job.drift_bytes, ranks)


def _wrong(job: Job, plan: list, mine: float) -> str:
    """Say how the seconds of a schedule come about, and what was said in their place."""
    H, late, said = plan
    waits_s = max(0.0, _message_s(job) - late * job.step_s)  # in each round but the last
    rounds = round((mine - _message_s(job) + waits_s) / (H * job.step_s + waits_s))
    steps_s = rounds * H * job.step_s
    return (
        f"H={H}, late={late} reaches the target after {mine:.5g} s, and you say {said:.5g} s. There, rounds: {rounds}, "
        f"local steps: {steps_s:.5g} s, waiting: {mine - steps_s:.5g} s."
    )


def _slow(plan: list, mine: float, best: str, best_s: float) -> str:
    H, late = best.split()
    there = f"H={H}, late={late} reaches the target after {best_s:.2f} s"
    if mine == math.inf:
        return f"with H={plan[0]}, late={plan[1]} the target is not reached in {MOST_STEPS} steps, and {there}."
    return f"H={plan[0]}, late={plan[1]} takes {mine:.2f} s, and {there}."
