"""Lab 9: a mixture of experts over ranks, whose tokens travel within a budget of bytes, and a placement of its experts.

`lab9.outputs`, `lab9.gradients` and `lab9.bytes` look at the same run of the same class: right numbers say nothing of
bytes, and few bytes nothing of numbers. `lab9.placement` judges which expert lives on which rank.
"""
