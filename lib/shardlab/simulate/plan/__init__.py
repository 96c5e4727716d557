"""Will it fit, and how fast will it be? A plan for a training job on machines that one does not have.

    shape, models, huggingface     a model: its parameters' shapes, from a name or a config.json
    strategy, setup, checks        how it is to be trained, on what; and whether these go together
    weights                        what of each parameter one GPU has to do with
    records                        what a plan says: terms, moments, seconds
    activations/                   what a part of the model makes, and what autograd keeps of it
    memory/                        all bytes of a GPU, over a step: the closed form
    trace/                         the same by another route: the engines themselves, without memory or hardware
    flops, traffic/, speed/        operations, bytes on each link, seconds
    choose/                        the bottleneck, advice, a search, the decision matrix
    api                            `plan(model, machine, world_size, ...)`
    published                      other people's runs, to hold plans against

Read in this order. Nothing here computes with tensors but `trace/`.
"""
