"""The notebooks' own code: how they are stored and run, their figures and widgets, and the claims on trial.

Each part stands alone:

    lessons/            the form of a notebook, its rules, how it is executed, the book
    figures/            one function for each figure; widgets/: figures with controls
    claims/             the claims of the course's sources, each one tested
    fsdp_switches, timed_fsdp, leaky_programs, broken_jobs      the material of lesson 6b
    scaling, trace_exercise      the material of lessons 10 and 12
    measured_step, unit_states      a step's memory and messages; which units are whole, moment by moment
    small_run, killed_writer, lost_time, two_nodes      the material of lesson 11
    pictures/           pictures that explain; exercises/: checks of the exercises
    slow_fsdp_job, toy_device      what lesson 12 measures
    who                 a picture of the part of a tensor that each live rank holds
    source_text         source code and error reports, formatted for a lesson
    cli/                the command line; the only part that imports `grading`
"""
