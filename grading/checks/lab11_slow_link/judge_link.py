"""Judge what crosses between sites, when, and what a site waits for: from the simulated network's record.

A third of the points each for rounds, for late messages, and for rounds that sites miss. Bytes have limits on both
sides: fewer can't have carried the mean. What they carried is seen in the weights, which the other checks judge.
"""

from grading.checks.lab11_slow_link.judge_weights import (
    Runs,
    late_runs,
    missed_runs,
    outer_runs,
    replies_of,
    words_of,
)
from grading.checks.lab11_slow_link.model_samples_schedule import Setting
from grading.judge.session import Session
from grading.judge.verdict import Verdict
from shardsim.network import Network

SPARE_BYTES = 512  # for numbers of samples and the like, in a round, at each site
LEAST = 0.99  # of the bytes without which no mean is known everywhere
SLOW = "{} nodes, 400 MB/s 20 us inside, 2 MB/s 700 ms between"
MESSAGE_S = 1.4  # at least: two hops; a local step takes some milliseconds


def judge(s: Session, check: str, points: float) -> Verdict:
    parts = {
        "rounds": outer_runs(s.seed),
        "late messages": late_runs(s.seed),
        "missed rounds": missed_runs(s.seed),
    }
    earned, figures, cause = 0.0, {}, ""
    for name, runs in parts.items():
        found, fault = _of_part(s, check, runs)
        fault = fault or (_overlap(s, check) if name == "late messages" else "")
        figures |= {f"{name}: {key}": value for key, value in found.items()}
        earned += 0 if fault else points / len(parts)
        cause = cause or (fault and f"{name}: {fault}")
    words = "a round sends what its mean needs, between its sites, in the step that ends it; late messages overlap."
    return Verdict(check, earned, points, cause or words, "", figures)


def _of_part(s: Session, check: str, runs: Runs) -> tuple[dict, str]:
    """Return the figures of some runs, and the first fault."""
    figures, fault = {}, ""
    for shape, replies in replies_of(s, check, runs).items():
        network = Network.parse(words_of(shape)["network"], len(replies))
        for i, run in enumerate(runs[shape]):
            figure, found = _of_run([reply[i] for reply in replies], run, network)
            figures[f"{shape}, run {i + 1}"] = figure
            fault = fault or (found and f"on {shape}, run {i + 1} (H={run.H}, {run.dtype}): {found}")
    return figures, fault


def _of_run(replies: list[dict], run: Setting, network: Network) -> tuple[tuple[str, str], str]:
    """Return the bytes of the round that is nearest to its limit, or above it, and a fault in words."""
    worst, figure, due = 0.0, ("", ""), rounds_due(run, replies[0]["bytes"])
    sent, received = (sent_by_step(replies, run, network, way) for way in ("out", "in"))
    for step in range(run.steps + 1):
        total, fullest = sum(sent[step]), max(sent[step])
        place = "in `finish`" if step == run.steps else f"in step {step + 1}"
        if step not in due:
            if total:
                return (f"{total:.0f} B {place}", "0 B"), f"{total:.0f} bytes cross {place}, which ends no round."
            continue
        up, least, most = due[step]
        for site in set(range(run.nodes)) - set(up):
            if crossed := sent[step][site] + received[step][site]:
                return figure, f"{place} site {site} sends or gets {crossed:.0f} bytes, and its link is down."
        if (crossed := sum(received[step])) < LEAST * least:  # without what is written into the store
            return (f"{crossed:.0f} B {place}", ""), (
                f"{crossed:.0f} bytes cross {place}, and {least:.0f} are needed: do drifts go over the given network, "
                "and in this step?"
            )
        if fullest / most > worst:
            worst, figure = fullest / most, (f"{fullest:.0f} B leave a site {place}", f"{most:.0f} B")
        if fullest > most:
            return figure, (
                f"{fullest:.0f} bytes leave a site {place}, {fullest / most:.2f} times what is allowed: how many ranks "
                "of a site send, and what?"
            )
    return figure, ""


def rounds_due(run: Setting, drift_bytes: int) -> dict[int, tuple[list[int], float, float]]:
    """Return, for each step that ends a round, its sites, the least bytes of all, and the most that may leave one."""
    due, fresh = {}, set(range(run.nodes))
    ends = [*range(run.H - 1, run.steps, run.H)]
    for k, step in enumerate([*ends, run.steps]):
        up = run.up_at(k) if step < run.steps else list(range(run.nodes))
        if step == run.steps and run.steps % run.H == 0 and len(fresh) == run.nodes:
            break  # every step is in a message already
        m, back = len(up), len(set(up) - fresh)
        least = 2 * (m - 1) * drift_bytes + 2 * back * drift_bytes
        most = 2 * (m - 1) / m * drift_bytes + 2 * back * drift_bytes + SPARE_BYTES
        due[step], fresh = (up, least, most), set(up)
    return due


def sent_by_step(replies: list[dict], run: Setting, network: Network, way: str = "out") -> list[list[float]]:
    """Return the bytes that leave each site (or come in) by the step that issued them; the last entry is `finish`."""
    sent = [[0.0] * run.nodes for _ in range(run.steps + 1)]
    for reply in replies:
        for message in reply["record"]:
            step = sum(end_s < message["issued_s"] for end_s in reply["ends_s"])
            if message["kind"] == "store":  # any rank may read it, so all of it leaves the site
                sent[step][network.node(message["ranks"][0])] += message["bytes"] if way == "out" else 0
                continue
            load = network.bytes_by_link(message["kind"], message["bytes"], message["ranks"])
            known = 1 if message["kind"] == "send" else len(message["ranks"])  # ranks that record the same
            for site in range(run.nodes):
                sent[step][site] += load.get(("card", (site, 0), way), 0.0) / known
    return sent


def _overlap(s: Session, check: str) -> str:
    """Return a fault if a step waits for a message that it does not apply, twice: the machine may be busy."""
    return _waits(s, check, s.seed) and _waits(s, check, s.seed + 1)


def _waits(s: Session, check: str, seed: int) -> str:
    run = Setting(seed, 2, 2, "SGD", 10, 4, 0.7, 0.5, 3)
    replies = [reply[0] for reply in s.order(check, "train", runs=[run], **words_of("2x2", SLOW))]
    for rank, reply in enumerate(replies):
        ends_s = reply["ends_s"]
        for end in (run.H, 2 * run.H):  # steps, counted from 1
            waited_s = ends_s[end + run.late - 2] - ends_s[end - 2]
            if end + run.late - 1 <= run.steps and waited_s > MESSAGE_S:
                return (
                    f"with late={run.late}, rank {rank} takes {waited_s:.1f} s for the steps {end} to "
                    f"{end + run.late - 1}, while a message of {MESSAGE_S:.1f} s is on its way: wait for it in step "
                    f"{end + run.late}."
                )
    return ""
