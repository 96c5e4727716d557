"""Our own answers: what the reference's ranks run, and what judges compute to compare with.

A package for each lab that needs one, of the lab's name. Its files are named after what they hold. The package itself
has what is asked for by name:

    ON_RANKS        the implementations by drill; they come before the `REFERENCE` of the lab's drills
    asked(seed)     what judges ask for where a grading has drawn this seed: (name of a function there, its arguments)
    on_ranks(seed)  the drills that they ask the reference's ranks for, and that need our answers: (drill, arguments)
    races(seed)     the same of races
    HIDDEN          words of our answers that no release may have

The other public functions are what is asked for by name (`Session.solve`). They take and return what JSON can hold.

They are mounted in the reference's box alone: no submission runs beside them, and no student gets them. What is no
answer, such as PyTorch's own engine or a training in one process, stands with the drills and the judges.
"""
