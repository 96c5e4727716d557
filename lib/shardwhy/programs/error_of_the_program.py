"""A rank whose loader has no batch never sets the loss."""

from shardlab import launch


def train():
    for batch in []:
        loss = batch
    return loss


launch(train, 2, device="cpu", timeout_s=20)
