"""The simulated network beside real links, which are as slow as asked and leave nothing; the comparison is fair.

What needs namespaces is tried where they can be made; elsewhere the same test holds the benchmark to saying why not.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from deadlines import deadline_s

from shardbench import namespaces, shaped, shaped_ranks
from shardbench.shaped_ranks import Order
from shardlab import launch
from shardsim import simulated
from shardsim.link import Link

pytestmark = pytest.mark.night  # what people measure once is tried once a night

MISSING = namespaces.missing()
MBIT, MIB = 1e6, 1 << 20
ONE_NODE = Order(1, 4, 400 * MBIT, None, [MIB], [], rounds=1, repeats=1)
TWO_NODES = Order(2, 2, 400 * MBIT, 100 * MBIT, [MIB], [], rounds=1, repeats=1)


# ------------------------------------------------------------------------------------- command lines, as they are typed


@pytest.mark.parametrize("shape", [(1, 1, 1e9), (1, 4, 1e9), (2, 2, 1e9, 1e8), (3, 2, 1e9, 1e8)])
def test_commands_touch_nothing_outside_of_their_own_namespaces(shape):
    own_run, own_lo, *rest = namespaces.commands(*shape)
    assert (own_run, own_lo) == ("mount -t tmpfs none /run", "ip link set lo up")
    made = {c.removeprefix("ip netns add ") for c in rest if c.startswith("ip netns add ")}
    for command in rest:
        if not command.startswith("ip netns add "):
            inside = set(re.findall(r"(?:-n|netns) (\S+)", command))
            assert inside and inside <= made, command


def test_every_sender_is_shaped_once():
    lines = namespaces.commands(2, 2, 4e8, 1e8)
    ceilings = {
        re.search(r"-n (\S+) class add dev (\S+)", c).groups(): re.search(r"htb rate (\S+)", c)[1]
        for c in lines
        if "classid 1:1" in c
    }
    ranks, uplinks = {(f"rank{r}", "eth0"): "400000000bit" for r in range(4)}, {}
    uplinks = {(f"node{n}", "uplink"): "100000000bit" for n in range(2)}
    assert ceilings == ranks | uplinks
    cables = [re.search(r"link add (\S+) mtu \d+ netns (\S+)", c) for c in lines]
    assert {(m[2], m[1]) for m in cables if m} == set(ceilings)


def test_ranks_stand_at_the_bridge_of_their_node():
    lines = namespaces.commands(2, 2, 4e8, 1e8)
    for rank, node in enumerate((0, 0, 1, 1)):
        assert f"ip -n node{node} link set port{rank} master bridge up" in lines
        assert f"ip -n rank{rank} addr add 10.77.0.{rank + 1}/24 dev eth0" in lines
    for node in range(2):
        assert f"ip -n node{node} link set uplink master bridge" in lines
        assert f"ip -n core link set port{node} master bridge up" in lines


# ---------------------------------------------------------------------------------------- where it can't run it says so


def test_what_is_missing_is_really_missing():
    """Where this user can make a network namespace, nothing but the kernel's queues may stand in the way."""
    alone = ["unshare", "--user", "--map-root-user", "--net", "ip", "link", "set", "lo", "up"]
    tools = all(map(shutil.which, ("unshare", "ip", "tc")))
    if tools and subprocess.run(alone, capture_output=True).returncode == 0:
        assert MISSING is None or "qdisc" in MISSING


def test_elsewhere_than_on_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert namespaces.missing() == "network namespaces are Linux's, and this is darwin"


@pytest.mark.parametrize(("tool", "package"), [("unshare", "util-linux"), ("tc", "iproute2")])
def test_a_missing_tool_is_named_with_its_package(tool, package, monkeypatch):
    monkeypatch.setattr(namespaces.shutil, "which", lambda name, path: None if name == tool else name)
    assert namespaces.missing() == f"no `{tool}` here: install {package}"


def test_a_user_who_may_not_is_told(monkeypatch, tmp_path):
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2; exit 1\n")
    refusing.chmod(0o700)
    monkeypatch.setattr(namespaces.shutil, "which", lambda name, path: name)
    monkeypatch.setattr(namespaces, "_UNSHARE", [str(refusing)])
    assert re.search("user namespaces are switched off .*: .*Operation not permitted", namespaces.missing())


def test_the_benchmark_then_ends_well_and_says_why(monkeypatch, capsys):
    monkeypatch.setattr(namespaces, "missing", lambda: "no `tc` [here]")
    result = shaped.run()
    assert json.loads(json.dumps(result)) == result
    assert (result["cannot_run"], result["networks"], result["holds"]) == ("no `tc` [here]", [], None)
    shaped.show(result)
    assert capsys.readouterr().out.strip() == "cannot run here: no `tc` [here]"


# ----------------------------------------------------------------------- the child ends with its parent, whatever comes

CHILD = """
import subprocess, sys, time
def main(order):
    print("a line of its own")
    if order == "fail":
        raise ValueError("this is why")
    if order == "sleep":
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({pids!r}, "w").write("there")
        sleeper.wait()
    return order.upper()
"""
PARENT = """
from shardbench import namespaces
{plain}
namespaces.run_inside("child", "sleep", timeout_s=600)
"""
PLAIN = "namespaces._UNSHARE = []"  # without namespaces: what is Python's part of the way out


@pytest.fixture
def child(tmp_path, monkeypatch) -> Path:
    """A module `child` for run_inside; the file that it writes when it is well under way."""
    pids = tmp_path / "started"
    (tmp_path / "child.py").write_text(CHILD.format(pids=str(pids)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    return pids


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """mine(): the processes that this test has started, directly or not, in whatever namespace they are."""
    monkeypatch.setenv("SHARDLAB_TEST", str(tmp_path))

    def found() -> list[int]:
        return [p.pid for p in psutil.process_iter() if str(tmp_path) == _environ(p).get("SHARDLAB_TEST")]

    yield found
    for pid in found():  # where the test has failed
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def wait_until(true, within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + deadline_s(within_s)
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(true())


@pytest.mark.parametrize("unshare", ["", pytest.param(PLAIN, marks=pytest.mark.night)])
def test_the_last_line_comes_back_and_a_failure_brings_its_traceback(unshare, child, monkeypatch):
    if unshare or MISSING:
        monkeypatch.setattr(namespaces, "_UNSHARE", [])
    assert namespaces.run_inside("child", '{"it\'s": "quoted"}', timeout_s=deadline_s(60)) == '{"IT\'S": "QUOTED"}'
    with pytest.raises(RuntimeError, match=r"(?s)child ended with exit code 1 .*a line of its own.*this is why"):
        namespaces.run_inside("child", "fail", timeout_s=deadline_s(60))


@pytest.mark.parametrize("way", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.night)])
def test_nothing_outlives_a_parent_that_is_killed(way, child, mine):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(plain=PLAIN if MISSING else "")], stderr=subprocess.DEVNULL
    )
    assert wait_until(child.exists) and len(mine()) >= 3, "the parent, the child, and what the child has started"
    parent.send_signal(way)
    parent.wait(timeout=deadline_s(30))
    sleeping = 1 if MISSING else 0  # without a process namespace, what the child has started is its own affair
    assert wait_until(lambda: len(mine()) == sleeping)


def test_at_the_deadline_all_are_gone(child, mine):
    if MISSING:
        assert shaped.run()["cannot_run"] == MISSING
        return
    for timeout_s in (
        deadline_s(2),
        deadline_s(8),
        deadline_s(32),
    ):  # until the child gets as far as to start something
        if not child.exists():
            with pytest.raises(subprocess.TimeoutExpired):
                namespaces.run_inside("child", "sleep", timeout_s)
            assert wait_until(lambda: not mine())
    assert child.exists()


@pytest.mark.night
def test_all_are_gone_when_the_way_in_is_killed(child, mine):
    """`unshare` stands between the parent and the child."""
    if MISSING:
        assert shaped.run()["cannot_run"] == MISSING
        return
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(plain="")], stderr=subprocess.PIPE, text=True)
    assert wait_until(child.exists)
    (unshare,) = psutil.Process(parent.pid).children()
    unshare.kill()
    assert "child ended with exit code -9" in parent.communicate(timeout=deadline_s(30))[1]
    assert wait_until(lambda: not mine())


# ----------------------------------------------------------------------------------------------- arithmetic of verdicts


def times(real: float, simulated: float) -> dict[str, list[float]]:
    return {"real": [real, 2 * real, 3 * real], "simulated": [simulated, 2 * simulated, 3 * simulated]}


def found(**cases) -> dict:
    by_key = {f"{name}|{MIB}": times(*pair) for name, pair in cases.items()}
    return {"latency_s": {"inside": 1e-4}, "tcp": "reno", "cases": by_key, "ddp": {}}


def judged(cases: dict, ddp: dict | None = None) -> dict:
    return shaped.judged(ONE_NODE, found(**cases) | {"ddp": {cap: times(*pair) for cap, pair in (ddp or {}).items()}})


def test_what_is_close_and_in_order_holds():
    verdict = judged({"all_reduce (gloo)": (1.0, 1.1), "all_gather (gloo)": (0.5, 0.45)}, {"1.0": (2.0, 2.0)})
    assert verdict["holds"] and verdict["out_of_order"] == []
    assert verdict["largest_deviation"] == pytest.approx(0.1)
    assert [row["ratio"] for row in verdict["rows"]] == pytest.approx([1.1, 0.9, 1.0])
    assert [row["name"] for row in verdict["rows"]][-1] == "DDP, 1.0 MB buckets"


@pytest.mark.parametrize("simulated", [0.8, 1.2])
def test_what_is_too_far_from_real_does_not_hold(simulated):
    verdict = judged({"all_reduce (gloo)": (1.0, simulated)})
    assert not verdict["holds"] and verdict["largest_deviation"] == pytest.approx(0.2)


def test_unlike_algorithms_are_shown_but_not_judged():
    verdict = judged({"all_reduce (gloo)": (1.0, 1.0), "broadcast (gloo)": (3.0, 1.0)})
    assert verdict["holds"] and verdict["rows"][1]["differs"]


def test_another_order_does_not_hold_even_if_all_are_close():
    verdict = judged({"all_reduce (gloo)": (1.0, 1.0)}, {"1.0": (1.0, 1.12), "4.0": (1.1, 0.99)})
    assert verdict["largest_deviation"] < shaped.WITHIN and not verdict["holds"]
    assert verdict["out_of_order"] == [["DDP, 4.0 MB buckets", "DDP, 1.0 MB buckets"]]


def test_two_that_are_alike_have_no_order():
    assert judged({"all_reduce (gloo)": (1.0, 1.0)}, {"1.0": (1.0, 1.1), "4.0": (1.04, 1.0)})["holds"]


def test_an_order_that_one_round_contradicts_is_none():
    slow, fast = times(1.2, 1.0), times(1.0, 1.2)
    rows = [{"name": name, "differs": "", "rounds": rounds} for name, rounds in (("a", slow), ("b", fast))]
    assert shaped.out_of_order(rows) == [["a", "b"]]
    slow["real"][1] = fast["real"][1]
    assert shaped.out_of_order(rows) == []


# ------------------------------------------------------------------------------------------- what runs on both networks


def test_the_simulated_network_has_the_real_ones_figures():
    latency_s = {"inside": 1e-4, "between": 2e-4}
    one = shaped_ranks.network(ONE_NODE, latency_s, "ring")
    assert (one.nodes, one.ranks_per_node, one.inside, one.between) == (1, 4, Link(50e6, 1e-4), None)
    two = shaped_ranks.network(TWO_NODES, latency_s, "hierarchical")
    assert (two.inside, two.between, two.algorithm) == (Link(50e6, 1e-4), Link(12.5e6, 2e-4), "hierarchical")
    assert two.nics_per_node == 1, "the ranks of a node share its uplink"


@pytest.mark.parametrize("order", [ONE_NODE, TWO_NODES], ids=["one node", "two nodes"])
@pytest.mark.parametrize("side", ["real", "simulated"])
def test_calls_of_both_sides_run_on_a_simulated_network(order, side):
    """The times are the formula's, or above it where what is called is out of sends."""
    algorithms = {case.algorithm for case in shaped_ranks.cases(order)}
    for algorithm in algorithms:
        network = shaped_ranks.network(order, {"inside": 1e-4, "between": 1e-4}, algorithm)
        options = {"device": "cpu", "network": simulated(network), "stream": False}
        measured = launch(shaped_ranks.case_times, 4, order, side, (algorithm,), **options)[0]
        expected = {f"{c.name}|{MIB}" for c in shaped_ranks.cases(order) if c.algorithm == algorithm}
        assert set(measured) == expected
        for key, seconds in measured.items():
            kind = key.split(" ")[0].replace("hierarchical", "all_reduce")
            assert seconds > 0.95 * network.seconds(kind, MIB, range(4)), key


# ----------------------------------------------------------------------------------------------------------- real links


def host_network() -> tuple[str, bool]:
    """Devices with their queues, and whether `ip netns` was ever at work here."""
    devices = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return devices, Path("/run/netns").exists()


@pytest.mark.night
def test_real_links_are_as_slow_as_asked_and_leave_nothing(mine):
    """A link can't be faster than its rate, so a time below the formula's shows an unshaped one."""
    if MISSING:
        assert shaped.run()["cannot_run"] == MISSING
        return
    before = host_network()
    result = shaped.measured(TWO_NODES, timeout_s=deadline_s(120))
    assert {row["name"] for row in result["rows"]} == {case.name for case in shaped_ranks.NODES}
    for row, case in zip(result["rows"], shaped_ranks.NODES, strict=True):
        free = shaped_ranks.network(TWO_NODES, {"inside": 0.0, "between": 0.0}, case.algorithm)
        least = free.seconds("all_reduce", row["bytes"], range(4))
        assert row["real_s"] > 0.9 * least, "but for what the bucket of tokens lets through for free"
        assert row["real_s"] < 10 * least
    assert host_network() == before
    assert wait_until(lambda: not mine())


@pytest.mark.alone
@pytest.mark.night
@pytest.mark.timeout(900)
def test_simulated_times_are_real_ones(capsys):
    """The claim: within 15% and in the same order, over calls, sizes, topologies, and bucket sizes of torch's DDP."""
    result = shaped.run(rounds=2, sizes_bytes=(4 * MIB, 8 * MIB))  # a rank's own wake-ups count less than bandwidth
    assert json.loads(json.dumps(result)) == result
    shaped.show(result)
    assert result["cannot_run"] == MISSING
    assert result["holds"] is not False, capsys.readouterr().out
