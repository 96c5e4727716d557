"""Lab 8: choose a strategy for a cluster that you are given, and implement it.

The same function is run on three clusters drawn from a published family, and each check looks at another side of it:
the weights after some steps, the bytes held at the peak, the bytes that leave a node, and tokens a second, beside the
fastest strategy that a search finds.
"""
