"""The students' kit: the course, the labs, the library, and what `check` needs; nothing that answers a lab.

record_reference_results ──> what judges ask of our answers, for a few seeds: a student's `check` draws one of them
make ──> the folder that students get, with a README, a Makefile, a wheel, and a git repository of one commit
"""
