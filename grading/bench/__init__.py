"""Benchmarks of the grader's cost, fairness and safety: `shardlab bench labs`, `shardlab bench grader`.

labs      each lab's solution, graded: seconds and points
grader    all of the following
  fairness  how often a fast enough step is called too slow: simulated, and measured next to other work
  kills     a class whose grader is killed, again and again: are the grades those of an undisturbed run?
  scale     hundreds of submissions: seconds each, memory, and the same class by stock nbgrader
  clusters  a class graded by jobs of submitit, on this machine and by Slurm
  attacks   `grading/attacks`, and the outcome of each
  mutants   the wrong submissions of every lab's class: does the intended check stop each?
"""
