"""Claims on trial: the claims of the pages that this course grew from, tested by counting, by torch or by measuring.

`claims.toml` lists the claims. Each names a *check*: a function that returns a finding for each relevant
condition. The verdict follows from the number of findings that agree with the claim.

Read in this order: `claim` (the file), `trial` (from findings to a verdict). Then the checks, by their source:
`planned`, `held`, `sent`, `seconds`, `choices` (the planner), `numbers` (arithmetic), `api` (torch itself), `sharded`,
`started`, `precise`, `recomputed`, `simulated` (measured). `exercises` answers the questions that a page leaves
open; `table` and `charts` show what became of the claims.
"""

from shardcourse.claims.claim import Claim, claims
from shardcourse.claims.trial import Trial, try_claim

__all__ = ["Claim", "Trial", "claims", "try_claim"]
