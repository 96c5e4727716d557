"""Attacks that read what would help: each function looks where it lies in an ordinary course directory."""

from grading.attacks.attack import of_answer, of_notebook


def reads_the_solution():
    import json
    from pathlib import Path

    import grading

    root = Path(grading.__file__).parents[1]
    for path in (root / "solutions").glob("*/*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            if "def plan_buckets" in "".join(cell["source"]):
                exec("".join(cell["source"]), globals())
                print("GOT the solution")


def reads_a_sample_of_the_solution():
    from pathlib import Path

    import grading

    for path in (Path(grading.__file__).parent / "samples").rglob("*.py"):
        if "def plan_buckets" in path.read_text():
            exec(path.read_text(), globals())
            print("GOT a sample")


def reads_another_submission():
    from pathlib import Path

    import grading

    folder = Path(grading.__file__).parent
    roots = {folder, Path.cwd().parent, Path.cwd().parents[1], Path("/tmp"), Path.home()}
    for root in roots:
        for path in root.rglob("lab2_ddp.ipynb"):
            if "victim" in str(path):
                print("GOT", path.read_text()[:10])


def reads_the_gradebook():
    import sqlite3
    from pathlib import Path

    import grading

    for root in (Path(grading.__file__).parent, Path.cwd().parent, Path.cwd().parents[2], Path("/tmp")):
        for path in root.rglob("gradebook.db"):
            with sqlite3.connect(path) as gradebook:
                gradebook.execute("update grade set auto_score = 100")
            print("GOT the gradebook")


def reads_the_referees_memory():
    """Read what was drawn for this grading: from the referee's memory, and from the environment of its processes."""
    import os

    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as command, open(f"/proc/{pid}/environ") as environment:
                words, secrets = command.read(), environment.read()
            if "GRADER_TOKEN" in secrets:
                print("GOT the environment of", words)
            of_the_grader = any(name in words for name in ("pytest", "nbgrader autograde", "shardlab grade"))
            if of_the_grader and not words.startswith("bwrap"):
                with open(f"/proc/{pid}/mem", "rb"):
                    print("GOT the memory of", words)
        except OSError:
            pass


def reads_what_the_system_knows():
    for path in ("/etc/shadow", "/etc/passwd", "/var/log", "/home", "/proc/kcore", "/dev/mem"):
        try:
            with open(path, "rb") as file:
                print("GOT", path, file.read(10))
        except OSError:
            pass


def asks_for_the_solution_on_the_rank(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    import json
    from pathlib import Path

    import grading

    for path in (Path(grading.__file__).parents[1] / "solutions").glob("lab2*/*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            if "def plan_buckets" in "".join(cell["source"]):
                exec("".join(cell["source"]), found := {})
                return found["plan_buckets"](sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s)
    return [1] * len(sizes_bytes)


def looks_for_our_answer_on_the_rank(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    """Look for the planner that judges compare with: as a file, as a module, in memory."""
    import contextlib
    import gc
    import importlib
    import sys
    from pathlib import Path

    import grading

    found = []
    for path in Path(grading.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if "earliest finish" in text or "accumulate(reversed(" in text:
            found.append(path)
    for name in ("grading.references.lab2_ddp", "grading.checks.lab2_ddp.judge_bucket_plan"):
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(name))
    found += [f for f in gc.get_objects() if getattr(f, "__name__", "") in ("earliest_finish", "_best_cap")]
    found += [name for name in sys.modules if name.startswith("grading.") and "judge_bucket" in name]
    if not found:
        return [1] * len(sizes_bytes)

    def all_reduce_s(n_bytes):
        return 2 * (world_size - 1) * (latency_s + n_bytes / world_size / bandwidth_bytes_per_s)

    plans = [(0.0, [])]  # for so many parameters: (when it ends, counts)
    for j, ready in enumerate(ready_s, 1):
        ends = ((max(plans[i][0], ready) + all_reduce_s(sum(sizes_bytes[i:j])), i) for i in range(j))
        end, i = min(ends)
        plans.append((end, [*plans[i][1], j - i]))
    return plans[-1][1]  # the points show that something was found


ATTACKS = [
    *of_notebook(
        reads_the_solution,
        reads_a_sample_of_the_solution,
        reads_another_submission,
        reads_the_gradebook,
        reads_the_referees_memory,
        reads_what_the_system_knows,
    ),
    *of_answer(asks_for_the_solution_on_the_rank, looks_for_our_answer_on_the_rank),
]
