"""Submissions that do not play along: whatever they do, the referee comes back with a verdict and leaves nothing."""

import os
from types import SimpleNamespace

import psutil
import pytest
from deadlines import deadline_s
from submissions import LAB, pickled

from grading.boxes.rank_launcher_client import RanksFailedError, ReferenceFailedError
from grading.boxes.sandbox import Limits, Processes
from grading.judge.judge_answers import MOST_LOST_S, Referee
from grading.judge.session import Check, Session
from grading.judge.verdict import Verdict
from shardlab.tier import detect

PLAN = "lab2.plan"  # the cheapest check: one rank, no data
HONEST = "def plan(sizes_bytes, **link): return [1] * len(sizes_bytes)"

HOSTILE = {  # answer -> what is said of it, and of no other
    "not a pickle": (b"\x00 nonsense", "Unpickling"),
    "exits": (pickled("import os\ndef plan(**_): os._exit(0)", "plan"), "exit"),
    "replies what is no plan": (pickled("def plan(**_): return [1e400]", "plan"), "yours is [inf]"),
    "replies something else": (pickled("def plan(**_): return 'all points'", "plan"), "all points"),
    "replies no JSON": (pickled("def plan(**_): return object()", "plan"), "object"),
    "raises at unpickling": (
        pickled("class Trap:\n def __reduce__(self): return (exec, ('raise SystemExit(7)',))\nplan = Trap()", "plan"),
        "7",
    ),
}
KILLS_ALL = pickled("import os\ndef plan(**_): os.kill(os.getppid(), 9); os.kill(0, 9)", "plan")
WRITES = pickled(
    "import os\ndef plan(**_):\n for fd in range(3, 200):\n  try: os.write(fd, b'{\"results\": []}\\n')\n"
    "  except OSError: pass\n return 1",
    "plan",
)


@pytest.mark.parametrize(("answer", "words"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_answer_gets_no_points_and_its_own_reason(answer, words, referee):
    verdict = referee.judge({PLAN: answer}, only=PLAN)[0]
    assert (verdict.points, verdict.inconclusive) == (0, False)
    assert words in verdict.text(), verdict.text()


@pytest.mark.parametrize(
    "answer",
    [WRITES, pytest.param(KILLS_ALL, marks=pytest.mark.night)],
    ids=["writes to every descriptor", "kills all"],
)
def test_no_points_for_who_spoils_its_host_and_the_next_one_is_judged(answer, referee, monkeypatch):
    assert _judged_soon(referee, monkeypatch, answer).points == 0
    _is_judged_on_its_merits(referee)


def _judged_soon(referee, monkeypatch, answer):
    """By a referee that does not wait long."""
    with monkeypatch.context() as patch:
        patch.setattr("grading.judge.session.SHORTEST_DEADLINE_S", deadline_s(2))
        patch.setattr("grading.boxes.rank_launcher_client._MARGIN_S", 1.0)
        return referee.judge({PLAN: answer}, only=PLAN)[0]


def _is_judged_on_its_merits(referee):
    after = referee.judge({PLAN: pickled(HONEST, "plan")}, only=PLAN)[0]
    assert not after.inconclusive
    assert "times as late as the best" in after.cause, after.text()


def test_no_file_that_an_error_names_is_opened(referee, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("of the grader alone\n")
    words = "".join(f'x\n  File "{file}", line 1, in x\n' for file in (secret, "/dev/stdin", "/dev/zero"))
    verdict = referee.judge({PLAN: pickled(f"def plan(**_): raise RuntimeError({words!r})", "plan")}, only=PLAN)[0]
    assert verdict.points == 0
    assert all(f'File "{name}"' in verdict.text() for name in ("secret.txt", "stdin", "zero"))
    assert "of the grader alone" not in verdict.text()


def test_a_long_error_is_cut(referee):
    answer = pickled("def plan(**_): raise RuntimeError('  File \"' + '/torch/' * 1_000_000)", "plan")
    assert len(referee.judge({PLAN: answer}, only=PLAN)[0].text()) < 30_000


def test_an_answer_that_hangs_is_run_twice(referee, monkeypatch):
    monkeypatch.setattr("grading.judge.session.LONGEST_DEADLINE_S", 2.0)
    answer = pickled("import time\ndef plan(*_, **__): time.sleep(1000)", "plan")
    verdicts = referee.judge(dict.fromkeys(referee.checks, answer))
    assert [v.points for v in verdicts] == [0] * len(referee.checks)
    assert all("your code failed" in v.cause and "no result" in v.cause for v in verdicts[:2])
    assert all("not run, since your code hung" in v.cause for v in verdicts[2:])


HOST = "psutil.Process().parents()[1].pid"
KILLS = "psutil.Process({}).kill(); time.sleep(1)"


@pytest.mark.parametrize(
    "does, runs",
    [
        pytest.param(KILLS.format(""), 2, id="kills its rank"),
        pytest.param(KILLS.format(HOST), 2, id="kills its host", marks=pytest.mark.night),
        pytest.param("1 / 0", 1, id="raises"),
    ],
)
def test_an_answer_that_was_killed_is_run_once_more(does, runs, referee, tmp_path):
    """The system may have done it, short of memory. In the box that shows the files of here: to count the runs."""
    count = f"def plan(**_):\n import psutil, time; open({str(tmp_path / 'runs')!r}, 'a').write('.')\n"
    verdict = referee.judge({PLAN: pickled(f"{count} {does}", "plan")}, only=PLAN)[0]
    assert (verdict.points, verdict.inconclusive) == (0, False)
    assert (tmp_path / "runs").read_text() == runs * "."
    _is_judged_on_its_merits(referee)


# What becomes of an error, without ranks


@pytest.fixture
def judged(monkeypatch):
    """judged(*errors): the verdicts on one answer to as many checks, whose judges raise these; None: all points."""

    def verdicts(*errors):
        def check(error):
            def judge(session, name, points):
                runs.append(name)
                if error is not None:
                    raise error
                return Verdict(name, points, points, "right")

            return Check(1, judge)

        runs = []
        checks = {f"lab.{i}": check(error) for i, error in enumerate(errors)}
        lab = SimpleNamespace(__name__="no.lab.lab", DRILLS="none", CHECKS=checks, pace=lambda session: None)
        monkeypatch.setattr("grading.judge.judge_answers.lab_module", lambda name: lab)
        monkeypatch.setattr(
            "grading.judge.judge_answers.RankLauncher", lambda *_, **__: SimpleNamespace(close=lambda: None)
        )
        with Referee("lab", tier="cpu", same_player=True) as referee:
            return referee.judge(dict.fromkeys(checks, b"one answer")), runs

    return verdicts


def test_who_fails_without_hanging_is_still_run(judged):
    verdicts, runs = judged(*[RanksFailedError("it raised")] * 3, None)
    assert [v.points for v in verdicts] == [0, 0, 0, 1]
    assert all("it raised" in v.cause and not v.inconclusive for v in verdicts[:3])
    assert runs == ["lab.0", "lab.1", "lab.2", "lab.3"]


def test_who_hung_twice_is_not_run_again(judged):
    hangs = RanksFailedError("no result", timed_out=True)
    verdicts, runs = judged(hangs, RanksFailedError("it raised"), hangs, None)
    assert runs == ["lab.0", "lab.1", "lab.2"]
    assert [v.points for v in verdicts] == [0] * 4
    assert "not run, since your code hung 2 times" in verdicts[3].cause


def test_who_was_killed_is_run_twice_and_not_three_times(judged):
    verdicts, runs = judged(RanksFailedError("it is gone", killed=True), None)
    assert runs == ["lab.0", "lab.0", "lab.1"]
    assert [(v.points, v.inconclusive) for v in verdicts] == [(0, False), (1, False)]


def test_who_failed_for_long_enough_is_not_run_again(judged, monkeypatch):
    """With another answer to each check, or killed just before each deadline, each check would cost one or two."""
    clock = iter(range(0, 10_000, 50))
    monkeypatch.setattr("grading.judge.judge_answers.time", SimpleNamespace(monotonic=lambda: next(clock)))
    killed = RanksFailedError("it is gone", killed=True)
    verdicts, runs = judged(*[killed] * 6)
    assert MOST_LOST_S == 180
    assert runs == [f"lab.{i}" for i in (0, 0, 1, 1, 2, 2, 3, 3)], "50 s each"
    assert [v.points for v in verdicts] == [0] * 6
    assert "not run, since your code failed for 200 s in the checks before" in verdicts[4].cause


def test_what_is_no_fault_of_the_submission_decides_nothing(judged):
    verdicts, _ = judged(ReferenceFailedError("it is gone"), None)
    assert [(v.points, v.inconclusive) for v in verdicts] == [(0, True), (1, False)]


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("0"), KeyError("losses"), AttributeError("x"), RuntimeError("of torch's")]
)
def test_what_cannot_be_read_is_0_and_an_instructor_is_told(error, judged):
    verdicts, _ = judged(error, None)
    assert [(v.points, v.inconclusive) for v in verdicts] == [(0, False), (1, False)]
    assert verdicts[0].cause == "the judge could not read what your ranks replied: an instructor has to look."


@pytest.mark.parametrize("pace_s, deadline_s", [(0.1, 15), (2, 40), (30, 90)])
def test_a_deadline_follows_the_pace_within_limits(pace_s, deadline_s, monkeypatch):
    clock = iter([0.0, pace_s])
    monkeypatch.setattr("grading.judge.session.time", SimpleNamespace(monotonic=lambda: next(clock)))
    session = Session({}, None, None, detect("cpu"), pace=lambda session: None, false_fail=1e-3)
    assert session.deadline_s == deadline_s


def test_an_answer_sees_no_secret_and_nothing_of_it_outlives_the_referee(
    at_once, tmp_path, tmp_path_factory, monkeypatch
):
    """In the lesser box, which does not end by itself what was started in it."""
    temporary, seen = tmp_path_factory.mktemp("t"), tmp_path / "seen"  # a socket's path has to be short
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("GRADER_TOKEN", "secret")
    answer = pickled(
        "import os, time\n"
        "def plan(sizes_bytes, **_):\n"
        " if os.fork() == 0:\n"
        "  os.setsid()\n"
        "  if os.fork() == 0:\n"
        f"   open({str(seen)!r}, 'w').write(f'{{os.getpid()}} {{\"GRADER_TOKEN\" in os.environ}}')\n"
        "   time.sleep(1000)\n"
        "  os._exit(0)\n"
        " os.wait()\n"
        f" while not os.path.exists({str(seen)!r}): time.sleep(0.01)\n"
        " return [1] * len(sizes_bytes)",
        "plan",
    )
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with Referee(LAB, box=Processes(Limits.of_this_machine())) as referee:
        assert "times as late as the best" in referee.judge({PLAN: answer}, only=PLAN)[0].text()
    pid, has_secret = seen.read_text().split()
    assert has_secret == "False"
    assert _gone(int(pid))
    started = [p.pid for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert all(map(_gone, started))
    assert os.listdir(temporary) == []


@pytest.mark.night
def test_closing_leaves_no_process_and_no_file(tmp_path, monkeypatch):
    """In the best box there is, and after its reference has run."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with Referee(LAB) as referee:
        referee.judge({PLAN: pickled(HONEST, "plan")}, only=PLAN)
    started = [p.pid for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert all(map(_gone, started))
    assert os.listdir(tmp_path) == []


def test_what_was_not_handed_in_gets_no_points_and_a_reason(referee):
    verdicts = referee.judge({}, {PLAN: "nothing was handed in: NameError: plan_buckets"})
    assert [v.points for v in verdicts] == [0] * len(referee.checks)
    assert {v.check: v.cause for v in verdicts}[PLAN].endswith("NameError: plan_buckets")


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
