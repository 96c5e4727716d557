"""Lab 1: "will it fit?", answered by arithmetic, for five setups.

The student writes functions from plain numbers to bytes (resident, peak). The referee draws setups, has the answer
predict them on one rank where torch and shardlab can't be reached (`arithmetic`), has the reference's ranks run the
same setups (`programs`), and compares (`closeness`). Both never meet: the submission's ranks measure nothing, and the
reference's predict nothing. `formula` and `mistakes` put a wrong prediction into words, and decide no points.

    lab1.counts       parameters and kept bytes of a block, counted on the model itself
    lab1.one_rank     states, gradients, activations, the loss
    lab1.ddp          buckets, with and without views
    lab1.zero1        states dealt out in whole parameters; the fullest rank
    lab1.fsdp         shards between steps; what is whole for a while
    lab1.fsdp_bf16    which of it has 2 bytes, and what recomputation leaves
"""
