"""Ways for N ranks to train one model, each with the signature of PyTorch's own: swap the import.

Read in this order:

    collectives   what ranks can do together, out of sends: a ring, a tree, and what each costs
    ddp           everybody holds everything; gradients are averaged in buckets, while backward computes
    zero          a rank keeps 1/N of the optimizer states (stage 1), and of the gradients (stage 2)
    fsdp          1/N of the parameters, too (stage 3): two layouts, five strategies
    precision     16 bits: master weights, loss scaling, stochastic rounding
    recompute     fewer activations for more computation
    offload       optimizer states in host memory, or in a file
    state         saved by one strategy on N ranks, loaded by another on M
    quantised     LoRA on frozen weights of 4 bits, optimizer states of 8: torchao's, under fully_shard

Each begins with its vocabulary and, where there is one, a naive version.
"""
