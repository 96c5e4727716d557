"""What the same run would cost on a cluster: a simulated network under real ranks, and the arithmetic of schedules.

Read `link` (latency and bandwidth), `algorithms` (a collective as rounds of messages), `network` (which links these
take, and how long), `machines` (networks of known machines), `imitate` (the scaling law: a large job on a small
machine). Then what takes that time under real collectives: `fabric` (the state that all ranks share), `wire` (who
waits), `interconnect` (the process group), `streams` (overlap, for torch's FSDP on a CPU), `computation` (slept instead
of burnt). And what predicts it without running anything: `costs`, `overlap` (DDP's buckets), `schedules` (FSDP),
`pipeline`, and on `hardware` and `wires` that are known, `plan`.

What predicts shares nothing with what measures but a record's form, `measure.timeline`: one can't come from the other.
"""
