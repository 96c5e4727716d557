"""Processes that run untrusted code. Everything that runs inside a box may be hostile.

`sandbox/` makes the box. `rank_launcher_outside` and `rank_launcher_inside` are the two sides of a box with a lab's
ranks, `notebook_outside` and `notebook_inside` of a box with a notebook. `machine_locks` gives GPUs,
and a quiet machine, to one submission at a time.
"""
