"""The check of lesson 10b's exercise: it accepts the lesson's answer, and says what is wrong with wrong ones."""

import pytest

from shardcourse.exercises.nccl_log import problems


def answer(log, hosts):
    found, seen = [], set()
    for line in log.splitlines():
        host, text = line.split(":")[0], line.split("NCCL INFO ")[-1]
        seen.add(host)
        if text.startswith("Bootstrap"):
            interface = text.split("Using ")[1].split(":")[0]
            if interface == "lo" or interface.startswith("docker"):
                found.append(f"{host} meets over {interface}")
        elif text == "Using network Socket":
            found.append(f"{host} uses Socket, which is TCP")
    found += [f"{host} has no line" for host in hosts if host not in seen]
    return found


def misses_silent_hosts(log, hosts):
    return [s for s in answer(log, hosts) if "no line" not in s]


def names_no_host(log, hosts):
    return [" ".join(s.split()[1:]) for s in answer(log, hosts)]


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        (answer, ""),
        (lambda log, hosts: None, "it should return a list"),
        (misses_silent_hosts, "node-c never speaks: there are 1 faults, and it finds 0"),
        (names_no_host, "no sentence has the words node-b and Socket"),
    ],
)
def test_the_check_says_what_is_wrong(faults, said):
    found = problems(faults)
    assert said in found[0] if said else found == []
