"""Judge answers against a reference, without nbgrader.

`judge` runs a submission's notebook and has its answers judged. `referee` returns a `verdict` for every check of a lab;
`submission_run` holds one submission's answers and ranks; `timed_laps`, `stopwatch`, `betting_test` and
`timing_verdict` compare speeds; `memory_audit` and `tensor_projections` detect lies.
"""
