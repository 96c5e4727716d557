"""What a notebook's box and the code in it agree on: the folder for answers, and how much a cell may put out."""

ANSWERS = "SHARDLAB_ANSWERS"  # environment: the folder where answers are written down while a notebook is graded
MOST_OUTPUTS = 200  # of a cell, and a word on how it ended: each is checked by itself
