"""Lab 3: ZeRO-2 for parameters that must not move and ranks that are not alike. `lab3.shards` looks at who owns
what; the other checks look at one class from different sides: the weights, the norm, a step that has to be skipped,
the bytes that are held, the bytes that are sent, and when. Right weights say nothing of the last three."""
