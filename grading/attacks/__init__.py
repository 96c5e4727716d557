"""Submissions that want points, or harm, and not to solve anything.

Each hands in lab 2 as it was released but for one cell. What is in that cell is a function of this package: written
down here as plain code, and sent as its source. On success it says so, in a line that starts with GOT.

    reads       what is none of a student's business: solutions, other submissions, the gradebook, the referee's memory
    lies        to whoever measures, counts, compares or shows something
    floods      memory, disk, processes, output, time
    escapes     out of the box: other processes, the network, the system, the next submission
    notebooks   that are no longer what was released
    submit      hand one in, have it graded, see what it gained and what it changed
"""
