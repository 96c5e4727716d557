"""Several blocks of a Transformer in one module, so that they can be one unit."""

from torch import Tensor, nn

from shardlab.model import Transformer


class BlockGroup(nn.ModuleList):
    """Blocks that run one after the other."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        for block in self:
            x = block(x, cos, sin)
        return x


def group_blocks(model: Transformer, n_groups: int) -> Transformer:
    """Put the model's blocks into `n_groups` equal groups, which become its blocks."""
    if len(model.blocks) % n_groups:
        raise ValueError(f"{len(model.blocks)} blocks do not divide into {n_groups} groups")
    k = len(model.blocks) // n_groups
    model.blocks = nn.ModuleList(BlockGroup(model.blocks[i : i + k]) for i in range(0, len(model.blocks), k))
    return model
