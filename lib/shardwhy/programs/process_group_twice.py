"""init_process_group is called a second time."""

import torch.distributed as dist

from shardlab import launch


def join_again():
    dist.init_process_group("gloo")  # launch has made the group already


if __name__ == "__main__":
    launch(join_again, 2, device="cpu")
