# %% zero2
class Zero2(Replicated):
    pass
