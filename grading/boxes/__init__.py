"""Processes that run untrusted code. Everything on their side of the wall may be hostile.

`sandbox/` is the wall. `ranks` and `ranks_host` are its two sides for a lab's ranks, `notebook` and `notebook_host` for
a notebook. `machine_locks` gives GPUs, and a quiet machine, to one submission at a time.
"""
