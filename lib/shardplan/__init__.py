"""Predict whether a training job fits on machines that you do not have, and how fast it runs.

Read in this order; only `trace/` computes with tensors:

    shape, models                       a model: its parameters' shapes, by name
    huggingface                         the same from a config.json (`config_*`: its fields)
    strategy, job                       how it is trained, on which machines
    checks, planned_job                 whether these go together, and what would
    aliases                             what people type for a strategy, and options to paste
    stage_parameters                    which part of each parameter one GPU holds
    records                             what a plan consists of: terms, moments, seconds
    activations/                        what each part of the model makes, and what autograd keeps of it
    memory/                             all bytes of a GPU over a step, in closed form
    trace/                              the same bytes from the engines themselves, without memory or hardware
    flops, traffic/, speed/             operations, bytes on each link, seconds
    advice/                             the bottleneck in words, and what would help
    api                                 `plan(model, machine, world_size, ...)`
    search/                             the best strategies, the cost of a training, the decision matrix
    published                           other people's runs, to compare plans with
    calibration                         what a run of one's own says of the machine
    own_model                           a plan of any torch module, by the trace
    formulas                            each strategy's bytes by the papers' formulas, without a plan
    sharding_evidence                   what a step of a program holds and sends; `compare_formulas`: as promised?
    explained                           what is behind Muon and others, a line each
    tables, command                     a plan as tables, and `shardlab plan`: `command_options`, `command_mistakes`
"""
