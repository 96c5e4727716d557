"""What follows from a plan: the bottleneck in words, what would help, the best strategies, what it costs.

Read in this order: `bottleneck`; `changes`, single ones and their price; `advice`; `search`; `cost`; and `matrix`, the
six scenarios of the course's sources.
"""
