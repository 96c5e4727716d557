"""Hostile submissions, which want points or damage instead of solving the lab.

Each hands in lab 2 as released, with one cell changed. The cell contains a function of this package: it is written here
as plain code and sent as source. If it succeeds, it prints a line that starts with GOT.

    reads                        what a student must not see: solutions, other submissions, grades, the referee's memory
    lies                         to code that measures, counts, compares or shows something
    hidden_copies                of the gradients, where the system does not count memory
    hostile_replies              by what comes back from the box: too much, too late, of a strange kind
    floods                       too much memory, disk, processes, output, time
    keyrings_priorities_signals  by keys, priorities, mappings, descriptors, signals
    escapes                      out of the box: other processes, the network, the system, the next submission
    tampered_notebooks           that differ from what was released
    submit                       hand one in, have it graded, see what it gained and what it changed
"""
