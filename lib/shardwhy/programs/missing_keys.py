"""The saved model has another layer name than the new one."""

from collections import OrderedDict

from torch import nn

from shardlab import launch


def load():
    saved = nn.Sequential(OrderedDict(head=nn.Linear(4, 4))).state_dict()
    nn.Sequential(OrderedDict(classifier=nn.Linear(4, 4))).load_state_dict(saved)


launch(load, 2, device="cpu", timeout_s=20)
