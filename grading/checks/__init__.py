"""What each lab asks and how it is judged.

A lab is a package: `drills` runs on the ranks, beside the student's code; `lab` lists the lab's CHECKS for the referee,
whose judges stand in files of their own and hold budgets, reference values and the words of every verdict. Checks are
found by name: "lab2.gradients" belongs to the package whose name starts with "lab2_".
"""

import importlib
import pkgutil
from types import ModuleType


def lab_module(check_or_lab: str) -> ModuleType:
    """The `lab` module for "lab2.gradients" or "lab2_ddp"; ValueError names the labs there are."""
    prefix = check_or_lab.split(".")[0].split("_")[0] + "_"
    labs = [m.name for m in pkgutil.iter_modules(__path__) if m.ispkg]
    for name in labs:
        if name.startswith(prefix):
            return importlib.import_module(f"{__name__}.{name}.lab")
    raise ValueError(f"no lab has the check {check_or_lab!r}; there are {', '.join(labs)}")


def cell_name(check: str) -> str:
    """nbgrader's ids take no dots: the check "lab2.gradients" is graded by the cell "lab2-gradients"."""
    return check.replace(".", "-", 1)


def check_name(cell: str) -> str:
    """The check that a graded cell belongs to."""
    return cell.replace("-", ".", 1)
