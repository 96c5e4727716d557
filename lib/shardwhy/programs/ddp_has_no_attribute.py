"""A method of the model is called on the wrapper."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from shardlab import launch


class Model(nn.Linear):
    def generate(self):
        return "text"


def train():
    DDP(Model(4, 4)).generate()


launch(train, 2, device="cpu", timeout_s=20)
