"""Judge lab 10: sharded weights that are gathered in eight bits, and gradients that are reduced in eight bits.

`draw` draws matrices, formats and cuts. `on_ranks` asks the submission for its two calls. `e4m3` has the numbers of the
format, and `truth` the scales and roundings of one process. Each other file judges one check.
"""
