"""Find a lab by the name of a check: "lab2.gradients" belongs to the package of `grading.checks` called "lab2_..."."""

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

_LABS = "grading.checks"


def lab_module(check_or_lab: str) -> ModuleType:
    """Return the module `lab` for "lab2.gradients" or "lab2_ddp". Raises ValueError that names the labs there are."""
    prefix = check_or_lab.split(".")[0].split("_")[0] + "_"
    labs = [m.name for m in pkgutil.iter_modules([str(Path(__file__).parents[1] / "checks")]) if m.ispkg]
    for name in labs:
        if name.startswith(prefix):
            return importlib.import_module(f"{_LABS}.{name}.lab")
    raise ValueError(f"no lab has the check {check_or_lab!r}; there are {', '.join(labs)}")


def name_of(lab: ModuleType) -> str:
    """Return the lab's name, "lab2_ddp", of what `lab_module` returns."""
    return lab.__name__.split(".")[-2]


def cell_name(check: str) -> str:
    """The nbgrader id of a check's cell: ids take no dots, so "lab2.gradients" is graded by "lab2-gradients"."""
    return check.replace(".", "-", 1)


def check_name(cell: str) -> str:
    """The check that a graded cell belongs to."""
    return cell.replace("-", ".", 1)
