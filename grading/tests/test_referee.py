"""Submissions that do not play along: whatever they do, the referee comes back with a verdict and leaves nothing."""

import os
from types import SimpleNamespace

import psutil
import pytest
from submissions import LAB, pickled

from grading.crew import Crew
from grading.referee import Referee
from grading.sandbox import Limits, Processes, best_box
from grading.session import Session
from shardlab.tier import detect

PLAN = "lab2.plan"  # the cheapest check: one rank, no data
DRILLS = "grading.checks.lab2_ddp.drills"
HONEST = "def plan(sizes_bytes, **link): return [1] * len(sizes_bytes)"

HOSTILE = {
    "not a pickle": b"\x00 nonsense",
    "exits": pickled("import os\ndef plan(**_): os._exit(0)", "plan"),
    "kills the host": pickled("import os\ndef plan(**_): os.kill(os.getppid(), 9); os.kill(0, 9)", "plan"),
    "replies what is no plan": pickled("def plan(**_): return [1e400]", "plan"),
    "replies something else": pickled("def plan(**_): return 'all points'", "plan"),
    "replies no JSON": pickled("def plan(**_): return object()", "plan"),
    "writes to every descriptor": pickled(
        "import os\ndef plan(**_):\n for fd in range(3, 200):\n  try: os.write(fd, b'{\"results\": []}\\n')\n"
        "  except OSError: pass\n return 1",
        "plan",
    ),
    "raises at unpickling": pickled(
        "class Trap:\n def __reduce__(self): return (exec, ('raise SystemExit(0)',))\nplan = Trap()", "plan"
    ),
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_no_points_for_a_hostile_answer_and_the_next_one_is_judged(answer, referee):
    assert referee.judge({PLAN: answer}, only=PLAN)[0].points == 0
    after = referee.judge({PLAN: pickled(HONEST, "plan")}, only=PLAN)[0]
    assert not after.inconclusive
    assert "as late as need be" in after.cause, after.text()  # judged on its merits


@pytest.mark.parametrize("file", ["{secret}", "/dev/stdin", "/dev/zero"])
def test_no_file_that_an_error_names_is_opened(file, referee, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("of the grader alone\n")
    words = f'x\n  File "{file.format(secret=secret)}", line 1, in x\n'
    verdict = referee.judge({PLAN: pickled(f"def plan(**_): raise RuntimeError({words!r})", "plan")}, only=PLAN)[0]
    assert verdict.points == 0
    assert "of the grader alone" not in verdict.text()


def test_a_long_error_is_cut(referee):
    answer = pickled("def plan(**_): raise RuntimeError('  File \"' + '/torch/' * 1_000_000)", "plan")
    assert len(referee.judge({PLAN: answer}, only=PLAN)[0].text()) < 30_000


def test_an_answer_that_hangs_is_run_twice(referee, monkeypatch):
    monkeypatch.setattr("grading.session.LONGEST_DEADLINE_S", 4.0)
    answer = pickled("import time\ndef plan(*_, **__): time.sleep(1000)", "plan")
    verdicts = referee.judge(dict.fromkeys(referee.checks, answer))
    assert [v.points for v in verdicts] == [0] * len(referee.checks)
    assert all("your code failed" in v.cause and "no result" in v.cause for v in verdicts[:2])
    assert all("not run, since your code hung" in v.cause for v in verdicts[2:])


KILLS = "psutil.Process({}).kill(); time.sleep(30)"


@pytest.mark.parametrize(
    "does, runs",
    [(KILLS.format(""), 2), (KILLS.format("psutil.Process().parents()[1].pid"), 2), ("1 / 0", 1)],
    ids=["kills its rank", "kills its host", "raises"],
)
def test_an_answer_that_was_killed_is_run_once_more(does, runs, tmp_path):
    """The system may have done it, short of memory. In the box that shows the files of here: to count the runs."""
    count = f"def plan(**_):\n import psutil, time; open({str(tmp_path / 'runs')!r}, 'a').write('.')\n"
    with Referee(LAB, box=Processes(Limits.of_this_machine())) as referee:
        verdict = referee.judge({PLAN: pickled(f"{count} {does}", "plan")}, only=PLAN)[0]
        assert (verdict.points, verdict.inconclusive) == (0, False)
        assert (tmp_path / "runs").read_text() == runs * "."


@pytest.mark.parametrize("pace_s, deadline_s", [(0.1, 15), (2, 40), (30, 90)])
def test_a_deadline_follows_the_pace_within_limits(pace_s, deadline_s, monkeypatch):
    clock = iter([0.0, pace_s])
    monkeypatch.setattr("grading.session.time", SimpleNamespace(monotonic=lambda: next(clock)))
    session = Session({}, None, None, detect("cpu"), pace=lambda session: None, false_fail=1e-3)
    assert session.deadline_s == deadline_s


def test_a_daemon_forked_off_by_an_answer_ends_with_its_crew(tmp_path):
    answer = pickled(
        "import os, time\n"
        "def plan(sizes_bytes, **_):\n"
        " if os.fork() == 0:\n"
        "  os.setsid()\n"
        "  if os.fork() == 0:\n"
        f"   open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "   time.sleep(1000)\n"
        "  os._exit(0)\n"
        " os.wait()\n"
        " return [len(sizes_bytes)]",
        "plan",
    )
    crew = Crew(DRILLS, Processes(Limits.of_this_machine()))
    crew.order("plan", answer, world_size=1, timeout_s=30, instances=[{"sizes_bytes": [1]}])
    crew.close()
    assert _gone(int((tmp_path / "pid").read_text()))


def test_closing_leaves_no_process_and_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with Referee(LAB) as referee:
        referee.judge({PLAN: pickled(HONEST, "plan")}, only=PLAN)
    started = [p.pid for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert all(map(_gone, started))
    assert os.listdir(tmp_path) == []


def test_an_environment_secret_of_the_grader_does_not_reach_an_answer(monkeypatch):
    monkeypatch.setenv("GRADER_TOKEN", "secret")
    crew = Crew(DRILLS, best_box())
    try:
        answer = pickled("import os\ndef plan(**_): return [int('GRADER_TOKEN' in os.environ)]", "plan")
        reply = crew.order("plan", answer, world_size=1, timeout_s=30, instances=[{}])
    finally:
        crew.close()
    assert reply == [[[0]]]


def test_what_was_not_handed_in_gets_no_points_and_a_reason(referee):
    verdicts = referee.judge({}, {PLAN: "nothing was handed in: NameError: plan_buckets"})
    assert [v.points for v in verdicts] == [0] * len(referee.checks)
    assert {v.check: v.cause for v in verdicts}[PLAN].endswith("NameError: plan_buckets")


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
