"""Lab 3: ZeRO-2 for parameters that must not move and for ranks with unequal shares.

`lab3.shards` judges which rank owns which elements. Each other check tests one property of the same class: the weights,
the norm, a step that must be skipped, the bytes held, the bytes sent, and when they are sent. Right weights say nothing
about the last three.
"""
