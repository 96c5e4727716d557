"""Measure what a step costs: bytes held, bytes sent, and seconds.

tensors, ledger, allocation_hooks, memory, budget   bytes held; `wait_for_gloo`: when to look
traffic                                             bytes sent
throughput                                          seconds
timeline, range_labels, spans, record_timeline      what each rank does when; `simulated_events`: a network plugs in
profile, profile_labels, trace_file                 the same from torch.profiler, and files for a trace viewer
sharding_evidence                                   proof that a program shards
"""
