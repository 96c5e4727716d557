# %% sites
Sites = EveryStep
