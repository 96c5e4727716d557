"""The labs: what each one asks and how it is graded.

Each lab is a package. `on_ranks` runs on the ranks, together with the student's code, and knows no right value. `lab`
lists the lab's CHECKS for the referee. The other files hold the judges, with their budgets and verdict texts. What they
need of our own answers they ask for by name (`Session.solve`): these are in `grading.references`.
`grading.judge.find_lab` finds a check by name.
"""
