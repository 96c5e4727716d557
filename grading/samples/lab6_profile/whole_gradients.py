# %% build
def build(model):
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    order = [model, *model.blocks]
    for here, ahead in zip(order, order[1:], strict=False):
        here.set_modules_to_forward_prefetch([ahead])
    return model


# %% train_step
def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    losses = []
    for i, (tokens, targets) in enumerate(micro_batches):
        model.set_requires_gradient_sync(i + 1 == len(micro_batches))
        loss = model(tokens, targets)
        (loss / len(micro_batches)).backward()
        losses.append(loss.detach())
    optimizer.step()
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()
