"""Lab 2: data parallel, weighted by tokens.

Every check tests another property of the same class: what it computes, what it sends and when, what it holds, and how
fast it is. Right gradients say nothing about the other properties.
"""
