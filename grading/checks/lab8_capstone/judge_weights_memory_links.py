"""Judge what some steps compute, hold and send, on each of the clusters: three checks of the same record."""

import torch

from grading.checks.lab8_capstone import on_ranks
from grading.checks.lab8_capstone.job import BUDGETS, MB, RANKS, build_model, draw, job_of
from grading.checks.lab8_capstone.on_ranks import STEPS
from grading.judge.session import Session
from grading.judge.tensor_projections import distance, project, vector
from grading.judge.verdict import Verdict

TOLERANCE = 2e-5  # relative, of the weights' change; float32 gives 1e-6, one unit's messages in float16 give 1e-4
SAME_ON_ALL, UNCHANGED = 1e-3, 1e-6  # relative to the weights
SAME_MISTAKE = 0.02  # relative; every known mistake changes more than 0.1
LINK_RATIO = 1.15  # allowed bytes that leave a node, over the reference line's


WRONG = "the weights are wrong, so {what} does not count: see lab8.same."


def judge_same(s: Session, check: str, points: float) -> Verdict:
    """Compare the weights after some steps with those of one process; no gradients may be left after any step."""
    start, truth = _start_and_truth(s)
    figures, causes = {}, []
    for name in draw(s.seed):
        replies = account_of(s, check, name)
        error = max(_error(r, start, truth) for r in replies)
        figures[f"{name}: error, of the weights' change"] = (f"{error:.1e}", f"{TOLERANCE:g}")
        left = next(
            ((i, r["gradients_left"][i]) for r in replies for i in range(STEPS) if r["gradients_left"][i]), None
        )
        if left:
            words = "are left when train_step returns: set them to None or 0."
            causes.append(f"on {name} gradients of step {left[0] + 1} ({left[1]}) {words}")
        elif error > TOLERANCE:
            causes.append(f"on {name} {_mistake(s, replies, start, truth)}")
    return _verdict(check, points, causes, "the weights are those that one process would have, on every rank.", figures)


def judge_cap(s: Session, check: str, points: float) -> Verdict:
    """Compare the peak of the fullest rank with the card's memory; only a step with the right weights counts."""
    figures, causes = {}, []
    for name, facts in draw(s.seed).items():
        replies = account_of(s, check, name)
        fullest, cap = _fullest(replies), facts["memory_bytes"]
        figures[f"{name}: peak"] = (f"{fullest['peak_bytes'] / MB:.2f} MB", f"{cap / MB:.2f} MB")
        if fullest["peak_bytes"] > cap:
            causes.append(f"on {name} a card is out of memory in {fullest['where']}: {_parts(fullest['peak'])}")
        elif not is_right(s, replies):
            causes.append(f"on {name} {WRONG.format(what='what a step holds')}")
    return _verdict(check, points, causes, "on every cluster a step fits its cards.", figures)


def judge_links(s: Session, check: str, points: float) -> Verdict:
    """Compare the bytes that leave a node with the reference line's; only a step with the right weights counts."""
    figures, causes = {}, []
    for name, facts in draw(s.seed).items():
        replies = account_of(s, check, name)
        mine, theirs = _per_node(replies, facts), _per_node(line_of(s, name), facts)
        figures[f"{name}: leaves a node in a step"] = (f"{mine / MB:.2f} MB", f"{LINK_RATIO * theirs / MB:.2f} MB")
        if mine > LINK_RATIO * theirs:
            causes.append(f"on {name} {_too_many(mine, theirs, replies)}")
        elif not is_right(s, replies):
            causes.append(f"on {name} {WRONG.format(what='what a step sends')}")
    return _verdict(check, points, causes, "no more leaves a node than has to.", figures)


def _verdict(check: str, points: float, causes: list[str], passed: str, figures: dict) -> Verdict:
    """Give each cluster a third of the points; `causes` has one for each that gets none."""
    n = len(BUDGETS)
    return Verdict(check, points * (n - len(causes)) / n, points, causes[0] if causes else passed, "", figures)


# The record, and the truth


def account_of(s: Session, check: str, cluster: str) -> list[dict]:
    return s.order(check, "record_step", **_where(), seed=s.seed, facts=draw(s.seed)[cluster])


def line_of(s: Session, cluster: str) -> list[dict]:
    return s.order_reference("line", **line_on(draw(s.seed)[cluster]))


def line_on(facts: dict) -> dict:
    """Return the arguments of the drill `line`."""
    return _where() | {"facts": facts}


def pace(s: Session) -> None:
    line_of(s, "2x4")


def is_right(s: Session, replies: list[dict]) -> bool:
    return max(_error(r, *_start_and_truth(s)) for r in replies) <= TOLERANCE


def _start_and_truth(s: Session) -> tuple[torch.Tensor, torch.Tensor]:
    start, truth = (_trained(s.seed, *_ONE_PROCESS[name]) for name in ("nothing", "right"))
    return start, truth


def _error(reply: dict, start: torch.Tensor, truth: torch.Tensor) -> float:
    """Return how far one rank's weights are off, relative to their change."""
    mine = vector(reply["weights"])
    if reply["not_whole"] or mine.shape != start.shape:
        return float("inf")
    return distance(mine - start, truth - start)


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
    "the gradients were summed over ranks, not averaged": (float(RANKS), on_ranks.STEPS, slice(None)),
    "the gradients were divided by the number of ranks twice": (1 / RANKS, on_ranks.STEPS, slice(None)),
    "the gradients of 2 micro-batches were added up, not averaged": (2.0, on_ranks.STEPS, slice(None)),
    "the gradients of 4 micro-batches were added up, not averaged": (4.0, on_ranks.STEPS, slice(None)),
    "a step left out the second half of its sequences": (1.0, on_ranks.STEPS, slice(0, 2)),
    "a step used only the first of its sequences": (1.0, on_ranks.STEPS, slice(0, 1)),
    "a step used only the last of its sequences": (1.0, on_ranks.STEPS, slice(3, 4)),
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


def _mistake(s: Session, replies: list[dict], start: torch.Tensor, truth: torch.Tensor) -> str:
    if names := next((r["not_whole"] for r in replies if r["not_whole"]), None):
        return f"{names[0]} is not the whole parameter of the model that you were given, nor a DTensor of it."
    mine = [vector(r["weights"]) for r in replies]
    if any(v.shape != truth.shape for v in mine):
        return "the model that you were given has not its parameters any more: wrap it in place, and train these."
    if not all(torch.isfinite(v).all() for v in mine):
        return "the weights are not finite."
    apart = [distance(v, mine[0]) for v in mine]
    if max(apart) > SAME_ON_ALL:
        return f"the ranks end with different weights: rank {apart.index(max(apart))}'s are not rank 0's."
    if distance(mine[0], start) < UNCHANGED:
        return "the weights of the model that you were given did not change."
    for words, wrong in _ONE_PROCESS.items():
        if words in ("nothing", "right"):
            continue
        if distance(mine[0] - start, _trained(s.seed, *wrong) - start) <= SAME_MISTAKE:
            return f"the weights are as if {words}."
    off = distance(mine[0] - start, truth - start)
    if off <= SAME_MISTAKE:
        return (
            f"the weights are nearly right, but off by {off:.2%} of their change: is all float32, and the optimizer's?"
        )
    return f"the weights are off by {off:.0%} of what one process changes with all sequences of each step."


def _parts(peak: dict) -> str:
    parts = sorted(peak.items(), key=lambda part: -part[1])
    return ", ".join(f"{name.replace('_', ' ')} {n / MB:.2f} MB" for name, n in parts if n > 0.05 * MB) + "."


def _too_many(mine: float, theirs: float, replies: list[dict]) -> str:
    sent = ", ".join(f"{n} {kind}" for kind, n in sorted(replies[0]["collectives"].items()))
    return (
        f"{mine / theirs:.2f} times the reference line's bytes leave a node, in {sent} a rank: print the groups of "
        "your mesh, and count how often a step gathers and reduces."
    )
