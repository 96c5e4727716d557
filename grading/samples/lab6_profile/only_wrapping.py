# %% build
def build(model):
    for block in model.blocks:
        fully_shard(block)
        block.set_modules_to_backward_prefetch([block])
    fully_shard(model)
    model.set_modules_to_backward_prefetch([model])
    return model


# %% train_step
train_step = slow_train_step
