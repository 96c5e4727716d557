"""Will it fit, and how fast will it be? A plan for a training job on machines that one does not have.

Read in this order: `shape` (a model), `strategy` (the choices), `setup` and `checks` (do they go together), `records`
(what a plan says); then memory: `states`, `activations`, `memory`, `allocator`; then time: `flops`, `traffic`, `speed`;
then what follows: `advice`, `search`. `trace` arrives at the same memory by another route, through the real FSDP2.
"""
