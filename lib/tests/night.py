"""The tests that `make test` leaves out, in slices of at most ten minutes: `make night` runs all, CI one a commit.

    python lib/tests/night.py              list the slices
    python lib/tests/night.py night-3 hour run these
    python lib/tests/night.py all          run all of them
    python lib/tests/night.py turn         run the one whose turn it is: the commit's hash draws it

The names of tests that were not run, and why (no browser, not root, no bubblewrap), are printed at each slice's end.
How long each test takes is in durations.json; `--store` measures it anew while a slice runs.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DURATIONS = Path(__file__).with_name("durations.json")
MARKS = {"night": "night and not alone and not browser", "alone": "alone and not browser"}
NUMBER = {"night": 40, "alone": 4}  # of slices, each of some ten minutes by durations.json
WORKERS = {"night": ["-n", "2", "--dist", "worksteal"], "alone": []}  # a claim about time has the machine to itself
MADE = ("book", "look", "hour", "hub")  # by make, which installs what they need
IN_A_BROWSER = ("look", "hour", "hub")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def slices() -> list[str]:
    return [f"{kind}-{k}" for kind, n in NUMBER.items() for k in range(1, n + 1)] + list(MADE)


def command(name: str, store: bool = False) -> list[str]:
    if name in MADE:
        return ["make", name]
    kind, group = name.split("-")
    split = ["--splits", str(NUMBER[kind]), "--group", group, "--durations-path", str(DURATIONS)]
    split += ["--splitting-algorithm", "least_duration"] + ["--store-durations"] * store
    return [sys.executable, "-m", "pytest", "-m", MARKS[kind], *split, *WORKERS[kind], "-q", "-rs"]


def whose_turn() -> str:
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True)
    return slices()[int(commit, 16) % len(slices())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="SLICE", help="slices, or 'all', or 'turn'; the list if left out")
    parser.add_argument("--store", action="store_true", help="write down how long each test takes")
    arguments = parser.parse_args()
    names = arguments.names
    if names == ["all"]:
        names = slices()
    elif names == ["turn"]:
        names = [whose_turn()]
    if unknown := set(names) - set(slices()):
        parser.error(f"no slice is called {', '.join(sorted(unknown))}; there are {', '.join(slices())}")
    if not names:
        print("\n".join(slices()))
    failed = []
    for name in names:
        if name in IN_A_BROWSER and not any(map(shutil.which, BROWSERS)):
            print(f"slice {name}: not run, since there is no Chromium here")
            continue
        began = time.monotonic()
        print(f"slice {name}", flush=True)
        if subprocess.run(command(name, arguments.store), cwd=ROOT, stdin=subprocess.DEVNULL).returncode:
            failed.append(name)
        print(f"slice {name}: {(time.monotonic() - began) / 60:.1f} min", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
