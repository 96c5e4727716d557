"""The price of offloading in a step, in closed form, and what usual mistakes make of it."""

from shardlab.model import ModelConfig

ADAMW_BYTES = 28  # host memory traffic a parameter: p, g, m, v read and p, m, v written, in float32
NAMES = ("to_device_bytes", "to_host_bytes", "seconds")


def copied_bytes(config: ModelConfig, world_size: int) -> tuple[float, float]:
    """Return a rank's bytes to the device and to the host, in float32, with one unit a block.

    The root's shard is copied once a step, because the root stays gathered after forward.
    """
    share = 4 * config.n_params / world_size
    return 2 * share - 4 * root_params(config) / world_size, share


def root_params(config: ModelConfig) -> int:
    """Return the parameters of the embedding, last norm and output layer."""
    return (1 if config.tied else 2) * config.vocab_size * config.dim + config.dim


def truth(config: dict, world_size: int, link_bytes_per_s: float, host_memory_bytes_per_s: float) -> dict[str, float]:
    c = ModelConfig(**config)
    to_device, to_host = copied_bytes(c, world_size)
    update_s = ADAMW_BYTES * c.n_params / host_memory_bytes_per_s  # all ranks' shares go through one memory
    return dict(zip(NAMES, (to_device, to_host, (to_device + to_host) / link_bytes_per_s + update_s), strict=True))


def _share(i: dict) -> float:
    return 4 * ModelConfig(**i["config"]).n_params / i["world_size"]


def _link_s(i: dict, t: dict) -> float:
    return (t["to_device_bytes"] + t["to_host_bytes"]) / i["link_bytes_per_s"]


def _update_s(i: dict, t: dict) -> float:
    return t["seconds"] - _link_s(i, t)


MISTAKES = {
    "to_device_bytes": {
        "shards come in once a step, as if backward did not gather": lambda i, t: _share(i),
        "the root's shards come in twice, and they stay after forward": lambda i, t: 2 * _share(i),
        "the whole model comes in, and a rank brings only its share": lambda i, t: (
            t["to_device_bytes"] * i["world_size"]
        ),
        "both directions in one number": lambda i, t: t["to_device_bytes"] + t["to_host_bytes"],
    },
    "to_host_bytes": {
        "no gradients go out": lambda i, t: 0.0,
        "the whole gradients go out, and a rank holds only its share when they are reduced": lambda i, t: (
            t["to_host_bytes"] * i["world_size"]
        ),
        "as many bytes as come in": lambda i, t: t["to_device_bytes"],
    },
    "seconds": {
        "only the way to the device is counted": lambda i, t: (
            t["to_device_bytes"] / i["link_bytes_per_s"] + _update_s(i, t)
        ),
        "only the way to the host is counted": lambda i, t: (
            t["to_host_bytes"] / i["link_bytes_per_s"] + _update_s(i, t)
        ),
        "the optimizer's update is missing": _link_s,
        "each rank updates as if it had the host's memory to itself": lambda i, t: (
            _link_s(i, t) + _update_s(i, t) / i["world_size"]
        ),
    },
}
