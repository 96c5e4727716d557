"""Timelines of real ranks: what each rank computes, sends and waits for, and when.

Read in this order:

    timeline                        spans of one rank, as plain data, and sums over them
    range_labels, labels_to_spans   from labels on the host and messages on the links to spans
    record_timeline                 record what runs inside a block; `simulated_events`: a simulated network plugs in
    read_profile, profile_labels    the same from torch.profiler's traces
    profile_gpu                     and what they know of a GPU
    trace_file                      files for a trace viewer
"""
