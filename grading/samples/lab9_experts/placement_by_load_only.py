# %% place
def place(chosen, n_experts, n_ranks):
    rows = torch.tensor(chosen).flatten().bincount(minlength=n_experts)
    homes, busy, places = [0] * n_experts, [0] * n_ranks, [n_experts // n_ranks] * n_ranks
    for e in rows.argsort(descending=True).tolist():
        rank = min((r for r in range(n_ranks) if places[r]), key=busy.__getitem__)
        homes[e] = rank
        busy[rank] += int(rows[e])
        places[rank] -= 1
    return homes
