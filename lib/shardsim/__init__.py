"""A cluster's network under real ranks on one machine, and the arithmetic of schedules.

`launch(train, 4, network=simulated("2x2 nodes, 1 GB/s inside, 100 MB/s between"))` runs real collectives that take the
time they would take on that network. Read in this order:

    link, link_speeds       one link: latency and bandwidth; what real links carry
    algorithms, network     a collective as rounds of messages; which links these take, and how long
    hardware, machines      real cards, and the networks of known machines
    rank_network            `simulated`: a network for `launch`
    scaled_network          the scaling law: a large job imitated on a small machine
    shared_state, transfers, process_group      who has arrived, who waits, and the torch.distributed backend
    cpu_streams, slept_computation              overlap without a GPU: streams as clocks, computation that is slept
    closed_forms, bucket_overlap, step_schedules, pipeline_schedules    predictions that run nothing

Predictions and measurements share nothing but the form of a record, `shardlab.measure.timeline`.
"""

from shardsim.rank_network import simulated

__all__ = ["simulated"]
