"""Checks of advice: the pages' decision matrix, planned, and the choices of published runs."""

from shardcourse.claims.claim import Findings
from shardplan.published import runs
from shardplan.search.decision_matrix import pages_plan


def pages_strategy_fits(scenario: str) -> Findings:
    """Return "yes", "maybe" or "no": does the job fit with one short sequence at a time and all blocks recomputed?"""
    return {"at its best": pages_plan(scenario).fits}


def published_degree(degree: str) -> Findings:
    """Return a parallel degree of each run of the Llama 3 report's 405B, by number of GPUs and tokens a sequence."""
    jobs = [run.setup for run in runs() if run.id.startswith("llama-3-405b")]
    return {f"{job.world_size} GPUs, {job.strategy.seq_len} tokens": getattr(job.strategy, degree) for job in jobs}


def published_splits_sequences() -> Findings:
    return {when: degree > 1 for when, degree in published_degree("context").items()}
