"""Judge answers against a reference, without nbgrader.

`judge_submission` runs a notebook and has its answers judged. `judge_answers` returns a `verdict` for every check of a
lab; `session` holds one submission's answers and ranks; `timed_laps`, `stopwatch`, `betting_test` and
`timing_verdict` compare speeds; `hidden_memory` detects forged accounts of memory, and `tensor_projections` makes
results hard to forge.
"""
