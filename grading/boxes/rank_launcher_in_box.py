"""The process that starts ranks for a submission. Everything inside the box may be hostile.

The host reads orders, one JSON object a line, on standard input. It writes one JSON line an order: {"results": [...]},
one entry a rank, or {"error": ..., "timed_out": ..., "killed": ...}. It holds no secret, opens no answer and decides
nothing. Start it with `python -m grading.boxes.rank_launcher_in_box DRILLS_MODULE [ANSWERS_MODULE]`: only the
reference's box has the second one. Its `ON_RANKS` come before the `REFERENCE` of the drills.

An order: {"drill": function of the drills module, "answer": pickled, or null for the reference, "world_size": N,
"timeout_s": T, "device": "cpu", "network": words for a simulated one, or null, "watched": are the ranks measured from
outside?, "arguments": {...}}.
"""

import base64
import importlib
import json
import sys

import cloudpickle

from grading.boxes.pipes_and_subreaper import become_subreaper, private_pipes
from grading.boxes.trim_memory import give_back, give_back_at_once
from shardlab.launch import LaunchError, launch, warm_up
from shardsim import simulated


def main(*modules: str) -> None:
    become_subreaper()
    warm_up()
    orders, replies = private_pipes()
    for line in orders:
        replies.write(json.dumps(_obey(json.loads(line), modules)) + "\n")
        replies.flush()


def _obey(order: dict, modules: tuple[str, ...]) -> dict:
    if order["watched"]:
        give_back()  # what an earlier order took here is no rank's
    try:
        results = launch(
            _drill,
            order["world_size"],
            modules,
            order["drill"],
            order["answer"],
            order["arguments"],
            order["watched"],
            timeout_s=order["timeout_s"],
            device=order["device"],
            network=simulated(order["network"]) if order["network"] else None,
            stream=False,
        )
        return {"results": results}
    except LaunchError as error:
        return {"error": str(error), "timed_out": error.timed_out, "killed": error.killed}
    except Exception as error:  # no GPU in this box, for example: else nobody would learn why this process ended
        return {"error": f"{type(error).__name__}: {error}"}


def _drill(modules: tuple[str, ...], drill: str, answer: str | None, arguments: dict, watched: bool):
    """Run the drill on this rank, with the submission's answer, or with the reference if there is none."""
    if watched:
        give_back_at_once()
    drills, *answers = map(importlib.import_module, modules)
    if answer is not None:
        implementation = cloudpickle.loads(base64.b64decode(answer))
    else:
        references = [*(module.ON_RANKS for module in answers), drills.REFERENCE]
        implementation = next(known[drill] for known in references if drill in known)
    return getattr(drills, drill)(implementation, **arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
