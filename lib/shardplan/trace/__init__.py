"""A plan's memory by a second method: the setup's own program, run by PyTorch's own engines without hardware.

Read `run` (the call, and how it works), `traceable` (which setups can be traced), `program` (what runs), `tracker`
(what is live, and what made it), `layers` (from a few blocks to many), `no_hardware` (fake tensors and ranks). For a
model of the user's own: `any_model`, and `user_code`, which loads it.
"""

from shardplan.trace.run import Trace, step_parts, trace_memory

__all__ = ["Trace", "step_parts", "trace_memory"]
