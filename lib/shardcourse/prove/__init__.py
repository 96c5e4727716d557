"""`shardlab prove`: run everything that the course promises on this machine, and write down what held.

Read in this order: `parts` (what is run, and what counts as held), `runner` (runs each part in a process of its own,
and goes on where it was stopped), `page` (the record as a page to read, and README's table of what has been run).
"""
