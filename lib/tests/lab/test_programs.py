"""The engines on programs drawn by chance: they do what one process does, or say what they can't do.

By hand, more of them: `python lib/tests/lab/test_programs.py FIRST LAST [ENGINE ...]`.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # for a run by hand
import programs
from deadlines import deadline_s

from shardlab import LaunchError, launch

BY_DAY, BY_NIGHT = 8, 400


def sweep(name: str, first: int, last: int, most: int = 1 << 30) -> tuple[Counter, list[str]]:
    """Return the refusals of an engine, counted by their first words, and the findings, each with its seed.

    It ends when there are `most` findings.
    """
    refused, findings = Counter(), []
    with tempfile.NamedTemporaryFile("w+") as progress:
        while first < last and len(findings) < most:
            try:
                launch(
                    programs.many,
                    2,
                    name,
                    list(range(first, last)),
                    progress.name,
                    device="cpu",
                    timeout_s=deadline_s(30 + last - first),
                    stream=False,
                )
                break
            except LaunchError as error:
                seed = int(Path(progress.name).read_text() or first)
                if " Refused: " in str(error):
                    refused[str(error).partition("Refused: ")[2][:60]] += 1
                else:
                    findings.append(f"{name}, program {seed}: {error}")
                first = seed + 1
    return refused, findings


@pytest.mark.parametrize("name", programs.ENGINES)
def test_programs_do_what_one_process_does(name):
    """Half of the programs at least are run to their end."""
    refused, findings = sweep(name, 0, BY_DAY)
    assert not findings, findings[0]
    assert sum(refused.values()) <= BY_DAY / 2, refused


@pytest.mark.night
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", [10_000, 20_000])
@pytest.mark.parametrize("name", programs.ENGINES)
def test_many_programs_do_what_one_process_does(name, first):
    refused, findings = sweep(name, first, first + BY_NIGHT)
    assert not findings, findings[0]
    assert sum(refused.values()) <= BY_NIGHT / 3, refused


if __name__ == "__main__":
    import argparse

    import cloudpickle

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("engines", nargs="*", default=list(programs.ENGINES))
    parser.add_argument("--most", type=int, default=1 << 30, help="end an engine's programs after so many findings")
    arguments = parser.parse_args()
    cloudpickle.register_pickle_by_value(programs)
    for engine in arguments.engines:
        words, found = sweep(engine, arguments.first, arguments.last, arguments.most)
        print(f"{engine}: {len(found)} findings, {sum(words.values())} refused", *found, sep="\n", flush=True)
