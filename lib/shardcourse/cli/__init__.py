"""The command line `shardlab`. `app` has the commands; each other file has one command that is longer."""
