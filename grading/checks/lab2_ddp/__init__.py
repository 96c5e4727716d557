"""Lab 2: data parallel, weighted by tokens. Every check looks at another side of the same class: what it computes, what
it sends and when, what it holds, how fast it is. A right gradient says nothing of the other four."""
