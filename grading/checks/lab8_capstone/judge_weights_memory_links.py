"""Judge what some steps compute, hold and send, on each of the clusters: three checks of the same record."""

import torch

from grading.checks.lab8_capstone import fastest_strategy, on_ranks
from grading.checks.lab8_capstone.job import MB, RANKS, build_model, draw, job_of
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, project, vector
from grading.judge.verdict import Verdict

TOLERANCE = 2e-4  # relative, of the weights' change; float32 gives 1e-6, gradients sent in bfloat16 give 2e-3
SAME_MISTAKE = 0.02  # relative; every known mistake changes more than 0.1
SUSPICIOUS = 0.9  # over the line's bytes: with fewer, the strategy is better or leaves something out
LINK_RATIO = 1.15  # allowed bytes that leave a node, over the reference line's


def judge_same(s: Session, check: str, points: float) -> Verdict:
    """Compare the weights after some steps with those of one process."""
    right, moved = {k: _trained(s.seed, *v) for k, v in _ONE_PROCESS.items()}, None
    start, truth = right.pop("nothing"), right.pop("right")
    lost, figures, causes = 0, {}, []
    for name in draw(s.seed):
        mine = [vector(r["weights"]) for r in account_of(s, check, name)]
        moved = truth - start
        error = max(distance(v - start, moved) if v.shape == start.shape else float("inf") for v in mine)
        figures[f"{name}: error, of the weights' change"] = (f"{error:.1e}", f"{TOLERANCE:g}")
        if error > TOLERANCE:
            lost += 1
            causes.append(f"on {name} {_mistake(mine, start, truth, right)}")
    if causes:
        return Verdict(check, points * (3 - lost) / 3, points, causes[0], "", figures)
    cause = "the weights are those that one process would have, on every rank and cluster."
    return Verdict(check, points, points, cause, "", figures)


def judge_cap(s: Session, check: str, points: float) -> Verdict:
    """Compare the peak of the fullest rank with the card's memory."""
    lost, figures, cause = 0, {}, ""
    for name, facts in draw(s.seed).items():
        fullest, cap = _fullest(account_of(s, check, name)), facts["memory_bytes"]
        figures[f"{name}: peak"] = (f"{fullest['peak_bytes'] / MB:.2f} MB", f"{cap / MB:.2f} MB")
        if fullest["peak_bytes"] > cap:
            lost += 1
            cause = cause or f"on {name} a card is out of memory in {fullest['where']}: {_parts(fullest['peak'])}"
    if not lost:
        return Verdict(check, points, points, "on every cluster a step fits its cards.", "", figures)
    return Verdict(check, points * (3 - lost) / 3, points, cause, "", figures)


def judge_links(s: Session, check: str, points: float) -> Verdict:
    """Compare the bytes that leave a node with the reference line's; far fewer count only if the weights are right."""
    lost, figures, cause = 0, {}, ""
    for name, facts in draw(s.seed).items():
        replies = account_of(s, check, name)
        mine, theirs = _per_node(replies, facts), _per_node(line_of(s, name), facts)
        figures[f"{name}: leaves a node in a step"] = (f"{mine / MB:.2f} MB", f"{LINK_RATIO * theirs / MB:.2f} MB")
        if mine < SUSPICIOUS * theirs and not is_right(s, replies):
            lost, cause = lost + 1, cause or f"on {name} less is sent than a step needs, and the weights are wrong."
        elif mine > LINK_RATIO * theirs:
            lost, cause = lost + 1, cause or f"on {name} {_too_many(mine, theirs, facts, replies)}"
    if not lost:
        return Verdict(check, points, points, "no more leaves a node than has to.", "", figures)
    return Verdict(check, points * (3 - lost) / 3, points, cause, "", figures)


# The record, and the truth


def account_of(s: Session, check: str, cluster: str) -> list[dict]:
    return s.order(check, "record_step", **_where(), seed=s.seed, facts=draw(s.seed)[cluster])


def line_of(s: Session, cluster: str) -> list[dict]:
    facts = draw(s.seed)[cluster]
    return s.order_reference("line", **_where(), facts=facts, choice=fastest_strategy.best(job_of(facts)).as_json())


def pace(s: Session) -> None:
    line_of(s, "2x4")


def is_right(s: Session, replies: list[dict]) -> bool:
    start, truth = (_trained(s.seed, *_ONE_PROCESS[k]) for k in ("nothing", "right"))
    mine = [vector(r["weights"]) for r in replies]
    return all(v.shape == start.shape and distance(v - start, truth - start) <= TOLERANCE for v in mine)


def fits(replies: list[dict], facts: dict) -> bool:
    return _fullest(replies)["peak_bytes"] <= facts["memory_bytes"]


def _where() -> dict:
    """Return eight ranks on CPUs, on every tier: the cluster is simulated."""
    return {"world_size": RANKS, "device": "cpu"}


def _fullest(replies: list[dict]) -> dict:
    return max(replies, key=lambda r: r["peak_bytes"])


def _per_node(replies: list[dict], facts: dict) -> float:
    """Return the bytes of the node that sends most."""
    network = job_of(facts).network
    nodes: dict[int, float] = {}
    for rank, reply in enumerate(replies):
        nodes[network.node(rank)] = nodes.get(network.node(rank), 0.0) + reply["link_bytes"]
    return max(nodes.values())


# One process

_ONE_PROCESS = {  # (factor of the gradients, steps, sequences of a rank that count)
    "nothing": (1.0, 0, slice(None)),
    "right": (1.0, on_ranks.STEPS, slice(None)),
    "the gradients are summed over ranks, not averaged": (float(RANKS), on_ranks.STEPS, slice(None)),
    "the gradients are divided by the number of ranks twice": (1 / RANKS, on_ranks.STEPS, slice(None)),
    "the micro-batches' gradients are added up and not averaged over 2 of them": (2.0, on_ranks.STEPS, slice(None)),
    "the micro-batches' gradients are added up and not averaged over 4 of them": (4.0, on_ranks.STEPS, slice(None)),
    "a step leaves out the second half of its sequences": (1.0, on_ranks.STEPS, slice(0, 2)),
    "a step uses the first of its sequences only": (1.0, on_ranks.STEPS, slice(0, 1)),
    "a step uses the last of its sequences only": (1.0, on_ranks.STEPS, slice(3, 4)),
}
_cache: dict[tuple, torch.Tensor] = {}


def _trained(seed: int, factor: float, steps: int, kept: slice) -> torch.Tensor:
    """Return the projected weights after so many steps of one process that has all sequences."""
    key = (seed, factor, steps, str(kept))
    if key not in _cache:
        if len(_cache) > 1000:
            _cache.clear()
        model = train_alone([[sequence[kept] for sequence in by_rank(seed, i)] for i in range(steps)], seed, factor)
        _cache[key] = vector(project(on_ranks.weights(model), seed))
    return _cache[key]


def by_rank(seed: int, step: int) -> list[torch.Tensor]:
    """Return tokens and targets of each rank's sequences: (sequences, 2, positions)."""
    return [torch.stack(on_ranks.sequences(seed, step, rank), 1) for rank in range(RANKS)]


def train_alone(steps: list[list[torch.Tensor]], model_seed: int, factor: float = 1.0):
    """Train in one process, on a job whose cards take no time, and return the model."""
    facts = draw(0)["2x4"] | on_ranks.NO_TIME
    model = build_model(job_of(facts), model_seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=on_ranks.LEARNING_RATE, momentum=on_ranks.MOMENTUM)
    for ranks in steps:
        tokens, targets = torch.cat(ranks).unbind(1)
        optimizer.zero_grad()
        (factor * model(tokens, targets)).backward()
        optimizer.step()
    return model


# Words


def _mistake(mine: list[torch.Tensor], start: torch.Tensor, truth: torch.Tensor, mistakes: dict) -> str:
    if any(v.shape != truth.shape for v in mine):
        return "the model that you were given has not its weights any more: wrap it in place, and train these."
    if not all(torch.isfinite(v).all() for v in mine):
        return "the weights are not finite."
    if max(distance(v, mine[0]) for v in mine) > 1e-3:
        return "the ranks end with different weights: gradients did not reach all of them."
    if distance(mine[0], start) < 1e-6:
        return "the weights of the model that you were given did not change."
    for words, wrong in mistakes.items():
        if distance(mine[0] - start, wrong - start) <= SAME_MISTAKE:
            return words + "."
    if distance(mine[0] - start, truth - start) <= SAME_MISTAKE:
        return "the weights are nearly right: something is computed, or sent, in fewer bits than float32 has."
    return "the weights differ from what one process comes to with all sequences of each step."


def _parts(peak: dict) -> str:
    parts = sorted(peak.items(), key=lambda part: -part[1])
    return ", ".join(f"{name.replace('_', ' ')} {n / MB:.2f} MB" for name, n in parts if n > 0.05 * MB) + "."


def _too_many(mine: float, theirs: float, facts: dict, replies: list[dict]) -> str:
    sent = ", ".join(f"{n} {kind}" for kind, n in sorted(replies[0]["collectives"].items()))
    return (
        f"{mine / theirs:.2f} times the reference line's bytes leave a node, in {sent} a rank: print the groups of "
        "your mesh, and count how often a step gathers and reduces."
    )
