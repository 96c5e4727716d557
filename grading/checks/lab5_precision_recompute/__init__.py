"""Lab 5: precision and recomputation under a budget. Part 1: what is held, what is sent, and whether the numbers are
those of fp32; no two of these follow from the third. Part 2: which blocks to recompute, whether it is the same
computation, and whether it saves what it should. Part 3: all of it at once."""
