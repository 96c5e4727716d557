"""Measure what a step costs: bytes held, bytes sent, and seconds.

tensors, ledger, watch, memory, budget      bytes held; `gloo_threads`: when to look
traffic                                     bytes sent
throughput                                  seconds
timeline, labels, spans, record             what each rank does when; a simulated network plugs in by `event_source`
profile, profile_labels, trace_file         the same from torch.profiler, and files for a trace viewer
probes                                      proof that a program shards
"""
