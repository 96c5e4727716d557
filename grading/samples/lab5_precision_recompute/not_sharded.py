# %% shard
def shard(model):
    """Data parallel in fp32, as it always was; in bf16 some other time."""

    def average(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(average)
    return model
