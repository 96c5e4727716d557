"""Two parts of a program choose how new processes start."""

import multiprocessing

multiprocessing.set_start_method("spawn")
multiprocessing.set_start_method("fork")
