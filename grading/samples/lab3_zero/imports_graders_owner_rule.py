# %% owned
def owned(sizes, shares, rank):
    from grading.checks.lab3_zero.owner_rule import owned as theirs

    return theirs(sizes, shares, rank)
