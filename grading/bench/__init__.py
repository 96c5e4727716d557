"""What grading takes, and whether it is fair and safe: `shardlab bench labs`, `shardlab bench grader`.

labs      each lab's solution, graded: seconds and points
grader    what follows, together
  fairness  how often a step that is fast enough is called too slow: simulated, and measured beside other work
  kills     a class whose grader is killed, again and again: are the grades those of an undisturbed run?
  scale     submissions by the hundred: seconds each, memory, and the same class by stock nbgrader
  attacks   `grading/attacks`, and what became of them
  mutants   the wrong submissions of every lab's class, each stopped by the check that is meant for it
"""
