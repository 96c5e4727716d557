# %% read_step
from shardtrace.timeline import union, without


def read_step(events, rank, step):
    mine = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
    whole = next(e for e in mine if e["cat"] == "step" and e["name"] == f"step {step}")
    begin, stop = whole["ts"], whole["ts"] + whole["dur"]

    def cut(event):
        return max(begin, event["ts"]), min(stop, event["ts"] + event["dur"])

    inside = [e for e in mine if cut(e)[0] < cut(e)[1]]
    computing = union(cut(e) for e in inside if e["cat"] == "compute")
    found = {"computes": sum(b - a for a, b in computing), "all_gather": 0.0, "reduce_scatter": 0.0}
    sent, exposed, waited = 0.0, 0.0, {}
    for e in inside:
        kind = e["name"].split()[0]
        if e["cat"] == "link" and kind in found:
            lost = sum(b - a for a, b in without([cut(e)], computing))
            found[kind] += lost
            sent, exposed = sent + cut(e)[1] - cut(e)[0], exposed + lost
            if kind == "all_gather":
                waited[e["args"]["unit"]] = waited.get(e["args"]["unit"], 0.0) + lost
    shares = {name: t / (stop - begin) for name, t in found.items()}
    shares["rest"] = 1 - sum(shares.values())
    return shares | {"hidden": 1 - exposed / sent, "unit": max(waited, key=waited.get)}
