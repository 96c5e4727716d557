"""Processes that run untrusted code. Everything that runs inside a box may be hostile.

`sandbox/` makes the box. `rank_launcher_client` and `rank_launcher_in_box` are the two sides of a box with a lab's
ranks, `notebook_runner_client` and `notebook_runner_in_box` of a box with a notebook. `machine_locks` gives GPUs,
and a quiet machine, to one submission at a time.
"""
