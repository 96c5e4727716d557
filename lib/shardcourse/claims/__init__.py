"""Claims on trial: what the pages that this course grew from say, and what a count, torch or a measurement says.

`lib/benchmarks/claims.toml` has them, for people. Each names a *check*: a function that returns what was found, under
each condition that matters. The verdict is no opinion: it follows from how many of the findings agree with the claim.

Read in this order: `claim` (the file), `trial` (findings to a verdict). Then the checks, by what answers: `planned`,
`held`, `sent`, `seconds`, `choices` (the planner), `numbers` (arithmetic), `api` (torch itself), `sharded`, `started`,
`precise`, `recomputed` and `simulated` (measured). `exercises` answers the questions that a page leaves open.
"""

from shardcourse.claims.claim import Claim, claims
from shardcourse.claims.trial import Trial, try_claim

__all__ = ["Claim", "Trial", "claims", "try_claim"]
