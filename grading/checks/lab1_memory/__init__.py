"""Lab 1: "will it fit?", answered by arithmetic, for five setups.

The student writes functions from plain numbers to bytes (resident, peak). The referee draws setups. The answer predicts
them on one rank, where it cannot import torch or shardlab (`refused_imports`). The reference's ranks run the same
setups (`programs`). `judge_predictions` compares the two. The submission's ranks measure nothing, and the reference's
ranks predict nothing. `named_mistake` explains a wrong prediction in words; it decides no points.

    lab1.counts       parameters and kept bytes of a block, counted on the model itself
    lab1.one_rank     states, gradients, activations, the loss
    lab1.ddp          buckets, with and without views
    lab1.zero1        states assigned to ranks by whole parameters; the fullest rank
    lab1.fsdp         shards between steps; parameters and gradients that are whole for a while
    lab1.fsdp_bf16    which tensors have 2 bytes an element; what recomputation leaves
"""
