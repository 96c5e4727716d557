# %% shard
def shard(model):
    """Leaves the rates to a hook, which averages their gradients over ranks."""
    rates = {block.memory.forget.log_rate for block in model.blocks}
    for rate in rates:
        rate.register_post_accumulate_grad_hook(average)
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        fully_shard(block, mp_policy=half, ignored_params=rates)
    outer = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32, cast_forward_inputs=False)
    return fully_shard(model, mp_policy=outer, ignored_params=rates)


def average(rate):
    dist.all_reduce(rate.grad)
    rate.grad /= dist.get_world_size()
