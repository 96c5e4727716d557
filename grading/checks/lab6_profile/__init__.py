"""Lab 6: a slow, correct FSDP program. Part 1 reads a trace: what the step waits for, judged on traces drawn at grading
time. Part 2 repairs the program: `lab6.same` sees that it still computes the same, `lab6.memory` that it still shards,
`lab6.messages` what is sent, `lab6.prefetch` when it is asked for, and `lab6.throughput` what all of it is worth."""
