"""The submitted folders of a class: who handed in, what lies in a wrong place, and who may read a class's work."""

from contextlib import suppress
from pathlib import Path

_PRIVATE = ("submitted", "autograded", "judged", "queue", "feedback", "report")


def students_in(folder: Path, lab: str) -> list[str]:
    """Return the students with a folder of this lab in grading/submitted, or in another folder of nbgrader's."""
    return sorted(p.name for p in folder.iterdir() if _may_exist(p / lab)) if folder.is_dir() else []


def misplaced_in(submitted: Path, lab: str) -> dict[str, str]:
    """Return what lies in another place than <student>/<lab>: the folder's name -> what to do."""
    found = {}
    for place in sorted(submitted.iterdir()) if submitted.is_dir() else []:
        if place.name == lab:
            found[lab] = f"grading/submitted/{lab}: a student's folder comes first, <student>/{lab}"
        for name in (f"{lab}.ipynb", f"{lab}.zip", lab):
            path = place / name
            with suppress(OSError):
                if path.lstat() and not path.is_dir():
                    found[place.name] = (
                        f"grading/submitted/{place.name}/{name}: put it (unpacked) into {place.name}/{lab}/"
                    )
    return found


def make_private(folder: Path) -> None:
    """Let nobody else read a class's work: on a hub, students share the machine.

    Make the folders that are not there yet, so that a first grading, which takes hours, fills closed ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in _PRIVATE:
        with suppress(OSError):
            (folder / name).mkdir(mode=0o700)
    for path, mode in [*((folder / name, 0o700) for name in _PRIVATE), (folder / "gradebook.db", 0o600)]:
        with suppress(OSError):  # it is not there, or another's
            path.chmod(mode)


def _may_exist(path: Path) -> bool:
    """Return True also if we may not look there: grading then reports it."""
    try:
        path.lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True
