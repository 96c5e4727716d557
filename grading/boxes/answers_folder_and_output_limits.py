"""Settings shared by a notebook's box and the code in it: the folder for answers, and how much cells may output."""

ANSWERS = "SHARDLAB_ANSWERS"  # environment variable: the folder where answers are written while a notebook is graded
MOST_OUTPUTS = 200  # kept for each cell, plus a note on how it ended; each output is validated by itself
MOST_OF_ALL = 2_000  # kept of all cells together, plus such notes
LONGEST_OUTPUT = 1 << 20  # characters of one text
MOST_OUTPUT = 24 << 20  # characters of all outputs of a notebook, including figures
