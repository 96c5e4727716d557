# %% read_step
def read_step(events, rank, step):
    mine = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
    whole = next(e for e in mine if e["name"] == f"step {step}")
    end = whole["ts"] + whole["dur"]
    inside = [e for e in mine if e["ts"] >= whole["ts"] and e["ts"] + e["dur"] <= end]
    total, units = {"compute": 0.0, "all_gather": 0.0, "reduce_scatter": 0.0}, {}
    for e in inside:
        kind = e["name"].split()[0] if e["cat"] == "link" else e["cat"]
        if kind in total:
            total[kind] += e["dur"]
        if kind == "all_gather":
            units[e["args"]["unit"]] = units.get(e["args"]["unit"], 0) + e["dur"]
    shares = {"computes" if k == "compute" else k: t / whole["dur"] for k, t in total.items()}
    hidden = total["compute"] / (total["all_gather"] + total["reduce_scatter"])
    return {**shares, "rest": 1 - sum(shares.values()), "hidden": hidden, "unit": max(units, key=units.get)}
