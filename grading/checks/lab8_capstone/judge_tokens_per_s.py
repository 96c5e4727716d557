"""Compare the tokens a second with the reference line's; their laps alternate.

The line is the fastest strategy that a search finds, run by the reference's ranks on the same cluster.
"""

import math

from torch import nn

from grading.checks.lab8_capstone.job import MODEL, RANKS, SEQ_LEN, SEQUENCES, Job, draw, job_of
from grading.checks.lab8_capstone.judge_weights_memory_links import account_of, by_rank, fits, is_right, train_alone
from grading.checks.lab8_capstone.on_ranks import LAPS_OF_A_MODEL, proof, share_of_weights, weights
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, vector
from grading.judge.timed_laps import Lap, race, too_quick
from grading.judge.timing_verdict import Timing, settled, too_noisy
from grading.judge.verdict import Verdict

FULL_SHARE, HALF_SHARE = 0.9, 0.8  # share of the line's tokens a second, for a cluster's points, for half of them
N_CLUSTERS = 3
PROOF_TOLERANCE = 0.02  # float32 rounding gives up to 1e-4 in a model's laps, and 0.02 in twice as many
LEAST_WORK = 0.9  # share of the time that all sequences take
OTHER_WORK = 0.1  # relative: if computations or gradient bytes differ by more, it is not the judged step
COUNTED = {
    "computations": "forwards and backwards",
    "reduced_bytes": "bytes of gradients over the cluster's network",
}
BARS = (1 / FULL_SHARE, 1 / HALF_SHARE)  # the same bars as step time over the line's
SHARE = "tokens/s over the reference line's"


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give each cluster up to a third of the points; none, and no timing, if the step does not fit or is wrong."""
    earned, figures, causes, unclear = 0.0, {}, [], False
    for name, facts in draw(s.seed).items():
        replies = account_of(s, check, name)
        if not (is_right(s, replies) and fits(replies, facts)):
            why = "it does not fit" if is_right(s, replies) else "the weights are wrong"
            figures[f"{name}: {SHARE}"] = (f"not timed: {why}", f"{FULL_SHARE:.2f}")
            causes.append(f"on {name} the step was not timed: {why}.")
            continue
        work = _Work(facts, replies)
        timing, words = _race(s, check, facts, work)
        figures |= {f"{name}: {key}": value for key, value in words.items()}
        unclear |= timing is not None and not settled(timing, BARS)
        worth = sum(timing.within(bar) is True for bar in BARS) if timing else 0
        earned += points / 6 * worth
        if worth < 2:
            causes.append(f"on {name} {_slow(timing) if timing else work.lacks}")
    if unclear:
        return too_noisy(check, points, figures)
    if not causes:
        return Verdict(check, points, points, "as fast as the reference line on every cluster.", "", figures)
    return Verdict(check, earned, points, causes[0], "", figures)


def _race(s: Session, check: str, facts: dict, work: "_Work") -> tuple[Timing | None, dict]:
    """Return the step time over the reference line's (None if it left work out), and the figures."""
    timing = race(s, check, "laps", bars=BARS, proof=work, one_of=N_CLUSTERS, **lap_of(facts))
    if timing is None:
        return None, {SHARE: ("0: not the judged step", f"{FULL_SHARE:.2f}")}
    tokens = RANKS * SEQUENCES * SEQ_LEN
    mine, line = tokens / timing.mine_s, tokens / timing.reference_s
    planned = s.solve("planned_tokens_per_s", facts)
    return timing, {
        SHARE: (f"{1 / timing.ratio:.2f}", f"{FULL_SHARE:.2f}"),
        "tokens/s": (f"{mine:.0f}; the line {line:.0f}, by arithmetic {planned:.0f}", ""),
    }


def lap_of(facts: dict) -> dict:
    """Return the arguments of the drill `laps`."""
    return {"world_size": RANKS, "device": "cpu", "network": facts["network"], "facts": facts}


class _Work:
    """A lap's proof: the work of the judged step, at the cards' pace. `lacks` has what the first lap without it lacks.

    Adds up over ranks, because a rank may compute for another. A submission chooses how often it pays `launch_s`.
    """

    def __init__(self, facts: dict, judged: list[dict]) -> None:
        self.job, self.judged, self.lacks = job_of(facts), judged, ""

    def __call__(self, lap: Lap) -> bool:
        self.lacks = self.lacks or self._lacks(lap)
        return not self.lacks

    def _lacks(self, lap: Lap) -> str:
        computing_s, sending_s = _least_s(self.job)
        busy_s = sum(r["busy_s"] for r in lap.replies)
        if too_quick(lap, max(computing_s, sending_s)):
            least = f"computing takes {computing_s:.2f} s at least, and sending {sending_s:.2f} s"
            return f"a timed step took {lap.seconds:.2f} s: {least}."
        if busy_s < LEAST_WORK * RANKS * computing_s:
            return (
                f"a card computed for {busy_s / RANKS:.2f} s in a timed step: its sequences take {computing_s:.2f} s."
            )
        for key, what in COUNTED.items():
            timed, due = (sum(r[key] for r in found) for found in (lap.replies, self.judged))
            if abs(timed - due) > OTHER_WORK * due:
                return f"a timed step had {timed:.0f} {what}, and the step that the other checks saw had {due:.0f}."
        return "" if _trained_on(lap) else "the weights after a timed step are not those of its sequences."


def _least_s(job: Job) -> tuple[float, float]:
    """Return the least seconds of any strategy: a card's computation, and a node's sending.

    A node sends what all nodes need to have the sum of all gradients.
    """
    computing_s = 3 * MODEL.n_layers * SEQUENCES * job.sequence_s  # backward takes twice as long as forward
    sent_bytes = 2 * (job.network.nodes - 1) / job.network.nodes * 4 * MODEL.n_params
    return computing_s, sent_bytes / job.network.between.bandwidth_bytes_per_s


def _trained_on(lap: Lap) -> bool:
    """Return whether the weights are those of all laps since training restarted, the last on this lap's sequences."""
    seeds = lap.replies[0]["seeds"]
    if seeds[-1] != lap.seed or len(seeds) > LAPS_OF_A_MODEL:  # each costs one training step here
        return False
    begun, trained = (train_alone([by_rank(each, 0) for each in steps], 0) for steps in ((), seeds))
    truth = vector({"proof": proof(trained, lap.seed)})
    norms_off = max(distance(vector({"proof": r["proof"]}), truth) for r in lap.replies)
    return max(norms_off, _weight_off(lap, begun, trained)) <= PROOF_TOLERANCE


def _weight_off(lap: Lap, begun: nn.Module, trained: nn.Module) -> float:
    """Return how far the weight that is furthest off is from the trained one, relative to its change."""
    moved = {
        name: float((p - q).detach().norm()) for (name, p), (_, q) in zip(weights(trained), weights(begun), strict=True)
    }
    due = share_of_weights(trained, lap.seed)
    found = {name: sum(r["share"][name][0] for r in lap.replies) for name in due}
    offs = [abs(found[name] - due[name][0]) / moved[name] for name in due]
    return max(offs) if all(map(math.isfinite, offs)) else math.inf


def _slow(timing: Timing) -> str:
    return (
        f"{1 / timing.ratio:.0%} of the reference line's tokens a second: draw a timeline, and see whether cards wait "
        "for messages, or compute what they need not."
    )


def standing(verdicts: list[Verdict]) -> tuple[float, float, str] | None:
    """Return, for the leaderboard, the mean share, the fullest card, and the bytes that leave a node.

    Return None if a cluster's weights are wrong, its memory is not enough, or it was not timed.
    """
    by_check = {v.check: v for v in verdicts}
    needed = [by_check.get(f"lab8.{name}") for name in ("same", "cap", "links", "tokens")]
    if None in needed or not (needed[0].passed and needed[1].passed):
        return None
    _, cap, links, tokens = needed
    shares = [got for name, (got, _) in tokens.figures.items() if name.endswith(SHARE)]
    if len(shares) < 3 or not all(share.replace(".", "", 1).isdigit() for share in shares):
        return None
    fullness = [_number(peak) / _number(memory) for peak, memory in cap.figures.values()]
    leaves = ", ".join(got for got, _ in links.figures.values())
    return sum(map(float, shares)) / len(shares), max(fullness), leaves


def _number(figure: str) -> float:
    return float(figure.split()[0])
