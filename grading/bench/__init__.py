"""Benchmarks of the grader's cost, fairness and safety: `shardlab bench labs`, `shardlab bench grader`.

cost_of_labs               each lab's solution, graded: seconds and points
planned_gpu_memory_table   what labs and lessons need of each GPU, planned: the table of lib/README.md
grader_benchmarks          all of the following
  false_fails              how often a fast enough step is called too slow: simulated, and measured next to other work
  kills                    kill a class's grader again and again: are the grades those of an undisturbed run?
  large_class              hundreds of submissions: seconds each, memory, and the same class by stock nbgrader
  grading_by_slurm         a class graded by jobs of submitit, on this machine and by Slurm
  attacks                  `grading/attacks`, and the outcome of each
  judge_samples            the wrong submissions of every lab's class: does the intended check stop each?
  mutation_testing         the solution with one small change made by a program: does a check stop each?
  make_class               the submitted folders of a class of any size, which the others grade
"""
