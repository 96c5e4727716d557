"""A level is missing in the configuration: the group is a text."""

config = {"optimizer": "adamw", "lr": 3e-4}
for group in config.values():
    print(dict(group.items()))
