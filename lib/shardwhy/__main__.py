"""`python -m shardwhy [FILE...]`: the first cause in files, folders or standard input."""

import os
import sys

from shardwhy.answer import answer
from shardwhy.first_cause import ERROR, diagnose
from shardwhy.index import load
from shardwhy.logs import CannotRead, Log, files_of, read
from shardwhy.waits import answer_records, answer_stacks, record_of, stacks_of

USAGE = """usage: python -m shardwhy [FILE or FOLDER ...]

Find the first cause in what a job has written: a message, the log of one rank or of all, torchrun's table of failures.
It reads flight records and py-spy's dumps, too. Without a file, or with -, it reads standard input.
It sends nothing anywhere.
Exit status: 0 if the message is known, 1 if it is not, 2 if the input cannot be read."""


def why(names: list[str]) -> int:
    """Print the answer; return the exit status."""
    try:
        files = files_of([name for name in names if name != "-"])
        records = {file: record for file, _ in files if (record := record_of(file))}
        logs = read([named for named in files if named[0] not in records])
        if not names or "-" in names:
            if sys.stdin.isatty():
                print("Paste the message or the log, then press Enter and Ctrl-D.", file=sys.stderr)
            logs.append(Log(sys.stdin.buffer.read()))
    except CannotRead as error:
        print(f"shardlab why: {error}", file=sys.stderr)
        return 2
    if not records and not any(log.data.strip() for log in logs):
        print("shardlab why: there is nothing to read: the input is empty", file=sys.stderr)
        return 2
    diagnosis = diagnose(logs, load().values())
    stacks = [stack for log in logs for stack in stacks_of(log)]
    if (records or stacks) and (diagnosis.cause is None or diagnosis.cause.kind != ERROR):
        print("\n".join(answer_records(list(records.values())) if records else answer_stacks(stacks)))
        return 0
    print("\n".join(answer(diagnosis, logs)))
    return 0 if diagnosis.cause and diagnosis.cause.entry else 1


def main(arguments: list[str]) -> int:
    """Run the command; return the exit status."""
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    if wrong := [a for a in arguments if a.startswith("-") and a != "-"]:
        print(f"shardlab why: there is no option {wrong[0]}\n{USAGE}", file=sys.stderr)
        return 2
    try:
        status = why(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough; what is left must not be written when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
