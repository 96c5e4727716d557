"""Lab 6: a slow but correct FSDP program.

Part 1 reads a trace: what the step waits for, on traces drawn at grading time. Part 2 repairs the program. `lab6.same`
tests that it still computes the same, `lab6.memory` that it still shards, `lab6.messages` what it sends,
`lab6.prefetch` when it requests a gather, and `lab6.throughput` how fast it is.
"""
