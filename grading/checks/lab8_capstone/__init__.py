"""Lab 8: choose a strategy for a given cluster, and implement it.

The same function runs on three clusters drawn from a published family. Each check tests another property: the weights
after some steps, the bytes held at the peak, the bytes that leave a node, and tokens a second, compared with the
fastest strategy that a search finds.
"""
