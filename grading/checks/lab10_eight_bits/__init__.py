"""Judge lab 10: sharded weights that are gathered in eight bits, and gradients that are reduced in eight bits.

`draw` draws matrices, formats and cuts. `on_ranks` asks the submission for its two calls. `e4m3_numbers` has the
numbers of the format, and `truth` the scales and roundings of one process. `groups_by_scale_row_column` numbers
elements by what they have in common, `reused_random_numbers` finds those that share a random number, and
`independence_of_draws` and `halfway_numbers` look at draws of known chances. Each `judge_*` file judges one check.
"""
