"""The labs: what each one asks and how it is graded.

Each lab is a package. `on_ranks` runs on the ranks, together with the student's code. `lab` lists the lab's CHECKS for
the referee. The other files hold the judges, with their budgets, reference values and verdict texts.
`grading.judge.find_lab` finds a check by name.
"""
