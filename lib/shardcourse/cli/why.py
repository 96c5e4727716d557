"""`shardlab why`: the first cause in a message or in logs. It is `python -m shardwhy`."""

from typing import Annotated

import typer


def why_command(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE...]", help="logs or folders; standard input if left out")
    ] = None,
) -> None:
    """Read an error message or logs: name the first cause, its rank, what it means, and what to do next.

    The exit status is 0 if the message is known, 1 if it is not, and 2 if the input cannot be read.
    """
    from shardwhy.__main__ import why

    raise typer.Exit(why(files or []))
