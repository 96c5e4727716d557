"""What the notebooks need besides the library: how they are kept and run, figures, widgets, and claims on trial.

lessons/            the form of a notebook, its rules, how it is executed, the book
figures/            one function a figure; widgets/: figures with controls
claims/             what the course's sources say, each claim tried again
promises, scaling, trace_exercise, leaky_programs      the material of lessons 6, 10, 12 and 14
source_text         source code and error reports, as a lesson shows them
cli/                the command line; the only module that imports `grading`
"""
