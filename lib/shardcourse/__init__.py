"""The notebooks' own code: how they are stored and run, their figures and widgets, and the claims on trial.

Each part stands alone:

    lessons/            the form of a notebook, its rules, how it is executed, the book
    figures/            one function for each figure; widgets/: figures with controls
    claims/             the claims of the course's sources, each one tested
    pictures/           one picture that explains for each lesson, drawn without measuring
    experiments/        what lessons measure: jobs, programs and harnesses
    exercises/          checks of a reader's function: what is wrong with it, in words
    who                 a picture of the part of a tensor that each live rank holds
    repository          where the clone is
    nvidia_smi          what `nvidia-smi` says about this machine's GPUs
    source_text         source code and error reports, formatted for a lesson
    cli/                the command line; the only part that imports `grading`
"""
