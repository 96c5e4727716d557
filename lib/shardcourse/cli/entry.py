"""`shardlab`, the installed command. `shardlab why` imports no torch, so it works where torch does not."""

import sys

NEED_A_CLONE = {
    *("demo", "tidy", "book", "prove", "bench"),
    *("release", "kit", "grade", "feedback", "report", "export"),
}


def main() -> None:
    """Run `shardlab` with the arguments of this process."""
    if sys.argv[1:2] == ["why"]:
        from shardwhy.__main__ import main as why

        sys.exit(why(sys.argv[2:]))
    if problem := _needs_a_clone(sys.argv[1:2]):
        sys.exit(problem)
    from shardcourse.cli.app import app

    try:
        app()
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("grading."):
            raise
        sys.exit(f"shardlab {' '.join(sys.argv[1:2])}: this is an instructor's command, and not in the students' kit.")


def _needs_a_clone(command: list[str]) -> str:
    """Return why the command cannot run from an installed package that is in no clone, or ""."""
    from shardcourse.repository import HERE, ROOT, is_clone

    if not NEED_A_CLONE.intersection(command) or is_clone(HERE):
        return ""
    where = ROOT if is_clone(ROOT) else "a clone of the repository"
    return (
        f"shardlab {command[0]}: this needs the course's own folders, and the package that runs is a copy outside. "
        f"In {where}: make setup, then .venv/bin/shardlab; or pip install -e ."
    )


if __name__ == "__main__":
    main()
