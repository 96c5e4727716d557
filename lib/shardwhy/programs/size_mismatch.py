"""The vocabulary has grown by two tokens since the model was saved."""

from torch import nn

from shardlab import launch


def load():
    saved = nn.Embedding(8, 4).state_dict()
    nn.Embedding(10, 4).load_state_dict(saved)


launch(load, 2, device="cpu", timeout_s=20)
