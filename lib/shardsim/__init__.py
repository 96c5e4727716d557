"""A simulated cluster network for real ranks on one machine, and predictions of schedules by arithmetic.

`launch(train, 4, network=simulated("2x2 nodes, 1 GB/s inside, 100 MB/s between"))` runs real collectives that take the
time they would take on that network. Read in this order:

    link, link_speeds       one link: latency and bandwidth; the bandwidths of real links
    algorithms, network     a collective as rounds of messages; the links that these use, and how long they take
    hardware, machines      real GPUs, and the networks of known machines
    simulated_network       `simulated`: a network for `launch`
    time_dilation           the scaling law: a small job imitates a large one, and each time is longer by one factor
    shared_state, transfers, process_group      arrivals; waiting; the torch.distributed backend
    cpu_streams, slept_computation              overlap without a GPU: streams as clocks, sleep instead of computation
    timeline_events         the times of messages, for `shardtrace`
    closed_forms                                what collectives cost, by the textbook's algorithms and by NCCL's choice
    bucket_overlap, step_schedules, pipeline_schedules    predictions that run nothing

Predictions and measurements share only the form of a record, `shardtrace.timeline`.
"""

from shardsim.simulated_network import simulated

__all__ = ["simulated"]
