"""The limit of a plan in words: the memory if it does not fit, else the part that takes most of the step."""

from collections import defaultdict

from shardplan.formatting import gib, percent, seconds
from shardplan.records import Plan, Term


def bottleneck(plan: Plan) -> str:
    if plan.fits == "yes":
        return time_in_words(plan)
    verdict = "does not fit" if plan.fits == "no" else "may not fit"
    return f"{verdict}: {memory_in_words(plan)}"


def memory_in_words(plan: Plan) -> str:
    """Describe the peak: "activations: 68.0 GiB of the peak's 92.0 GiB, in backward of block 3; the largest: ..."."""
    peak = plan.memory.peak
    category, n_bytes = max(peak.by_category().items(), key=lambda item: item[1])
    terms = largest_terms(tuple(t for t in peak.terms if t.category == category), 2)
    largest = ", ".join(f"{words} ({gib(n)})" for words, n in terms if n > 0.01 * peak.n_bytes)
    held = f"{gib(n_bytes)} of the peak's {gib(peak.n_bytes)}"
    return f"{category.replace('_', ' ')}: {held}, in {peak.name}; the largest: {largest}"


def largest_terms(terms: tuple[Term, ...], most: int = 5) -> list[tuple[str, float]]:
    """Return (words, bytes), the largest first. Terms with the same words are added up."""
    sums: defaultdict[str, float] = defaultdict(float)
    for term in terms:
        sums[term.words] += term.n_bytes
    return sorted(sums.items(), key=lambda row: -row[1])[:most]


def time_in_words(plan: Plan) -> str:
    """Describe the step: "exposed communication: 41% of a step of 1.31 s, most of it for all_gathers between nodes"."""
    speed = plan.speed
    part, part_s = max(speed.parts_s.items(), key=lambda item: item[1])
    of_the_step = f"{percent(part_s / speed.step_s)} of a step of {seconds(speed.step_s)}"
    if part == "exposed communication":
        return f"{part}: {of_the_step}, most of it for {next(iter(speed.waits_s))}"
    if part == "computation":
        return f"{part}: {of_the_step}, in which the GPU reaches {percent(speed.hfu)} of its peak"
    return f"{part}: {of_the_step}"
