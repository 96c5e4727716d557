# %% shard
def shard(model):
    for block in model.blocks:
        block.memory.forget.forward = torch.autocast(local_device().type, enabled=False)(block.memory.forget.forward)
        fully_shard(block)
    fully_shard(model)
    model.forward = torch.autocast(local_device().type, torch.bfloat16)(model.forward)
    model.register_forward_hook(lambda module, args, logits: logits.float())
    return model
