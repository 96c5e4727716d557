"""Settings shared by a notebook's box and the code in it: the folder for answers, and how much a cell may output."""

ANSWERS = "SHARDLAB_ANSWERS"  # environment variable: the folder where answers are written while a notebook is graded
MOST_OUTPUTS = 200  # kept for each cell, plus a note on how it ended; each output is validated by itself
