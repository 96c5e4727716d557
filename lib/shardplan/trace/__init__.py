"""A plan's memory by another route: the setup's own program, run by PyTorch's own engines, with no hardware under it.

Read `run` (the call, and how it works), `traceable` (what has a trace), `program` (what runs), `tracker` (what is live,
and what made it), `layers` (from a few blocks to many), `no_hardware` (what has to be told that nothing is there).
"""

from shardplan.trace.run import Trace, step_parts, trace_memory

__all__ = ["Trace", "step_parts", "trace_memory"]
