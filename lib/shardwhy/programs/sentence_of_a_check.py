"""A check of the program stops it with a sentence that no index knows."""

REPLICAS = (0, 1)
if len(REPLICAS) != 1:
    raise AssertionError(f"Tying weights has to happen within a replica of a model. Got the replicas: {REPLICAS}")
