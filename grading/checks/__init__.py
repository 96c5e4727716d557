"""What each lab asks and how it is judged.

A lab is a package: `drills` runs on the ranks, beside the student's code; `lab` lists the lab's CHECKS for the referee,
whose judges stand in files of their own and hold budgets, reference values and the words of every verdict.
`grading.judge.labs` finds a check by name.
"""
