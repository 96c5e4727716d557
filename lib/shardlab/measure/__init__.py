"""What a step costs.

Bytes held: read `tensors`, `ledger`, `watch`, `memory`, then `budget`. Bytes sent: `traffic`. Seconds: `throughput`,
`scaling`. Who did what when: `timeline`, `labels`, `spans`, `record`, then `profile`, `trace_file` and `shares`. Proof
that a program shards: `strategies`, `probes`, `promises`.
"""
