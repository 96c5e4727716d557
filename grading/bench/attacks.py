"""Run every attack of `grading/attacks`; record what it gained, what it changed, and how long it took."""

from statistics import median

from grading.attacks.attack import LAB
from grading.attacks.submit import ATTACKS, LONGEST_S, course, submit


def run() -> dict:
    with course() as classroom:
        outcomes = [submit(attack, classroom) for attack in ATTACKS]
        honest = classroom.autograde(LAB, "victim")
    seconds = sorted(o.seconds for o in outcomes)
    return {
        "attacks": len(outcomes),
        "gained points, or read or changed what is not theirs": [o.attack for o in outcomes if not o.failed],
        "nobody is told why": [o.attack for o in outcomes if not o.words],
        "not graded, for a reason": sum(o.points is None for o in outcomes),
        "median seconds": median(seconds),
        "longest seconds, and the limit": [seconds[-1], LONGEST_S],
        "honest work after them": f"{honest.total:g} of {sum(honest.max_points.values()):g} points",
        "seconds by attack": {o.attack: o.seconds for o in outcomes},
    }
