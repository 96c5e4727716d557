# %% configure
def configure(model, job):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step(tokens, targets):
        model(tokens, targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train_step
