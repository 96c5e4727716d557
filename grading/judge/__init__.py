"""Judge answers against a reference, without nbgrader.

`referee` returns a `verdict` for every check of a lab; `submission_run` holds one submission's answers and ranks;
`timed_laps`, `stopwatch`, `betting_test` and `timing` compare speeds; `memory_audit` and `fingerprints` detect lies.
"""
