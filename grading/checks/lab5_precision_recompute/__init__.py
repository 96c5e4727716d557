"""Lab 5: precision and recomputation under a budget.

Part 1: what is held, what is sent, and whether the numbers match fp32. No one of the three follows from the others.
Part 2: which blocks to recompute, whether the computation stays the same, and whether it saves what it should.
Part 3: all of this at once.
"""
