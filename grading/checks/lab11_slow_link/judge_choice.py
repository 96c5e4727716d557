"""Compare the seconds that a chosen schedule takes to the target's loss with those of the best one, job by job."""

from grading.checks.lab11_slow_link.drawn_jobs import H_ALLOWED, MOST_STEPS, draw, job_of
from grading.judge.session import Session
from grading.judge.verdict import Verdict

FULL, HALF = 1.02, 1.10  # times the best schedule's seconds, on the worst job


def judge(s: Session, check: str, points: float) -> Verdict:
    jobs = draw(s.seed)
    chosen = s.order(check, "choices", jobs=jobs, world_size=1, device="cpu")[0]
    figures, worst, cause = {}, 0.0, ""
    for i, (facts, plan) in enumerate(zip(jobs, chosen, strict=True), 1):
        if fault := _fault(plan):
            return Verdict(check, 0, points, f"job {i}: {fault}", "", figures)
        times = {key: seconds for key, seconds in s.solve("times", facts).items() if seconds}
        best = min(times, key=times.get)
        mine = times.get(f"{plan[0]} {plan[1]}", float("inf"))
        ratio = mine / times[best]
        figures[f"job {i}: H={plan[0]}, late={plan[1]}"] = (f"{ratio:.2f} times the best", f"{FULL}")
        if ratio > worst:
            worst, cause = ratio, f"job {i}, {_about(facts)}: {_slow(plan, mine, best, times[best])}"
    earned = points if worst <= FULL else points / 2 if worst <= HALF else 0
    if earned == points:
        cause = "no schedule reaches any job's target sooner than the one that you chose."
    return Verdict(check, earned, points, cause, "", figures)


def _fault(plan) -> str:
    if not isinstance(plan, list):
        return f"`choose` has to return two ints, (H, late), and returned {plan}."
    H, late = plan
    if H not in H_ALLOWED:
        return f"H={H} is none of {', '.join(map(str, H_ALLOWED))}."
    return "" if 0 <= late < H else f"late={late} does not lie between 0 and H - 1 = {H - 1}."


def _about(facts: dict) -> str:
    job = job_of(facts)
    ranks = range(0, job.network.world_size, job.network.ranks_per_node)
    message_s = job.network.seconds("all_reduce", job.drift_bytes, ranks)
    return f"{job.network.nodes} sites, a message of {message_s:.3f} s and a step of {job.step_s:.4f} s"


def _slow(plan: list[int], mine: float, best: str, best_s: float) -> str:
    H, late = best.split()
    there = f"H={H}, late={late} reaches the target after {best_s:.2f} s"
    if mine == float("inf"):
        return f"with H={plan[0]}, late={plan[1]} the target is not reached in {MOST_STEPS} steps, and {there}."
    return f"H={plan[0]}, late={plan[1]} takes {mine:.2f} s, and {there}."
