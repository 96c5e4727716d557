"""`shardlab`, the installed command. `shardlab why` imports no torch, so it works where torch does not."""

import sys


def main() -> None:
    """Run `shardlab` with the arguments of this process."""
    if sys.argv[1:2] == ["why"]:
        from shardwhy.__main__ import main as why

        sys.exit(why(sys.argv[2:]))
    from shardcourse.cli.app import app

    try:
        app()
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("grading."):
            raise
        sys.exit(f"shardlab {' '.join(sys.argv[1:2])}: this is an instructor's command, and not in the students' kit.")


if __name__ == "__main__":
    main()
