"""Our own answers: what the reference's ranks run, and what judges compute to compare with.

A module for each lab that needs one, of the lab's name. `ON_RANKS` has the implementations by drill; the other public
functions are what a judge asks for by name (`Session.solve`). They take and return what JSON can hold.

They are mounted in the reference's box alone: no submission runs beside them, and no student gets them. What is no
answer, such as PyTorch's own engine or a training in one process, stands with the drills and the judges.
"""
