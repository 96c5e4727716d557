"""The command line `shardlab`: `app` has the commands, each other file one command that needs more than a few lines."""
