"""Will a training job fit on machines that you do not have, and how fast will it be?

    shape, models, huggingface          a model: its parameters' shapes, from a name or a config.json
    strategy, setup, validation         how it is trained, on what; and whether these go together
    weights                             which part of each parameter one GPU holds
    records                             what a plan says: terms, moments, seconds
    activations/                        what each part of the model makes, and what autograd keeps of it
    memory/                             all bytes of a GPU over a step: the closed form
    trace/                              the same by another route: the engines themselves, without memory or hardware
    flops, traffic/, speed/             operations, bytes on each link, seconds
    advice/                             the bottleneck in words, and what would help
    api                                 `plan(model, machine, world_size, ...)`
    search/                             the best strategies, what a training costs, the decision matrix
    published                           other people's runs, to compare plans with
    formulas                            each strategy's bytes by the papers' formulas, without a plan
    tables, command                     a plan as tables, and `shardlab plan`

Read in this order. Only `trace/` computes with tensors.
"""
