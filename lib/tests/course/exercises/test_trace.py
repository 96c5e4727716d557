"""`callers` climbs from a collective to the lines that asked for it. The shares are tested beside the timelines."""

import json

from shardcourse.exercises.trace import callers


def event(name, ts, dur, cat="python_function", tid=1):
    return {"name": name, "cat": cat, "ts": ts, "dur": dur, "tid": tid}


def test_callers_are_around_the_call_outermost_first(tmp_path):
    events = [
        event("torch/distributed/fsdp/x.py(9): post_backward", 20, 30),
        event("/tmp/ipykernel_7/123.py(4): step", 0, 100),
        event("torch/autograd/function.py(3): apply", 10, 60),
        event("torch/utils/_contextlib.py(1): decorate_context", 12, 50),  # no call of interest
        event("torch/distributed/c10d_logger.py(8): wrapper", 21, 28),  # plumbing
        event("torch/distributed/fsdp/x.py(5): pre_backward", 20, 4),  # over before the call
        event("torch/distributed/fsdp/x.py(7): of another thread", 0, 100, tid=2),
        event("c10d::_reduce_scatter_base_", 30, 10, cat="cpu_op"),
        {"name": "process_name", "ph": "M", "tid": 1},
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    assert callers(trace, ("_reduce_scatter_base_",)) == [
        "123.py(4): step",
        "autograd/function.py(3): apply",
        "distributed/fsdp/x.py(9): post_backward",
    ]
