"""Processes that run untrusted code. Everything on their side of the wall may be hostile.

`sandbox/` is the wall. `rank_launcher_outside` and `rank_launcher_inside` are its two sides for a lab's ranks,
`notebook_outside` and `notebook_inside` for a notebook. `machine_locks` gives GPUs, and a quiet machine, to one
submission at a time.
"""
