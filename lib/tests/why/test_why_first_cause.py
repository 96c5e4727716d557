"""Logs in the shape of those that people post: the first cause, its rank and its line; or an honest "I don't know".

The logs in logs/ are written for these tests. Their entries are in symptoms/example.toml.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from shardwhy.answer import answer
from shardwhy.first_cause import CONSEQUENCE, ERROR, WAIT, WARNING, diagnose
from shardwhy.index import load
from shardwhy.logs import Log, files_of, read

HERE = Path(__file__).parent
ENTRIES = load(HERE / "symptoms").values()
KNOWN = {  # the entry, the rank, the number of the line
    "pasted_message": ("ready_only_once", None, 1),
    "torchrun_killed": ("killed", 2, 4),
    "oom_then_timeouts": ("cuda_out_of_memory", 3, 9),
    "only_timeouts": ("watchdog_timeout", 0, 6),  # by time, not by line
    "slurm_colours": ("ready_only_once", 3, 1),
    "progress_bar": ("watchdog_timeout", 5, 1),
    "default_prefix": ("worker_killed", 1, 6),
    "warning_then_port": ("address_in_use", None, 5),
    "only_warning": ("grad_strides", None, 1),
    "table_of_two": ("segmentation_fault", 12, 19),  # of two signals, the earlier by torchrun's own times
    "only_consequences": ("child_failed", None, 5),
    "slurm_oom": ("killed", None, 3),
    "ray": ("shapes_differ", 1, 5),
}
UNKNOWN = {  # the rank, words of the error, the number of the line
    "deepspeed_unknown": (None, "tuner.errors.TemplateMissing: no template named 'chat-v9'", 8),
    "unknown_traceback": (2, "corpus.ShardMissing: shard 00017 has no index", 5),
    "rich_box": (0, "KeyError: 'q_proj'", 9),
    "spawned": (1, "IndexError: list index out of range", 14),
}


def logs_of(name: str) -> list[Log]:
    return read(files_of([str(HERE / "logs" / f"{name}.txt")]))


@pytest.mark.parametrize("name", KNOWN)
def test_the_first_cause_of_a_log(name):
    cause = diagnose(logs_of(name), ENTRIES).cause
    assert (cause.entry.id, cause.rank, cause.line.number) == KNOWN[name]


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_error_is_not_explained_by_its_consequences(name):
    logs = logs_of(name)
    diagnosis = diagnose(logs, ENTRIES)
    rank, words, number = UNKNOWN[name]
    assert diagnosis.cause.entry is None
    assert (diagnosis.cause.rank, diagnosis.cause.line.text, diagnosis.cause.line.number) == (rank, words, number)
    said = answer(diagnosis, logs)
    assert said[0].startswith("I don't know this message.") and words in said[0] and f".txt:{number}" in said[0]
    assert rank is None or f"rank {rank}" in said[0]


def test_a_line_that_looks_like_an_error_is_shown_if_nothing_is_known():
    logs = logs_of("only_a_c_error")
    said = answer(diagnose(logs, ENTRIES), logs)
    assert "only_a_c_error.txt:3: libfoo: fatal: cannot open the device" in said[0]
    assert any("Collect next" in line for line in said)


def test_a_log_without_an_error_gets_no_cause():
    logs = logs_of("nothing_wrong")
    diagnosis = diagnose(logs, ENTRIES)
    assert diagnosis.cause is None and diagnosis.error_line is None
    assert "No line of nothing_wrong.txt looks like an error" in answer(diagnosis, logs)[0]


@pytest.mark.parametrize("name", [path.stem for path in sorted((HERE / "logs").glob("*.txt"))])
def test_no_answer_has_more_than_ten_lines(name):
    logs = logs_of(name)
    said = answer(diagnose(logs, ENTRIES), logs)
    assert 1 <= len(said) <= 10 and not any("\n" in line or "\x1b" in line for line in said)


def test_an_answer_has_everything_that_the_entry_says():
    logs = logs_of("torchrun_killed")
    said = "\n".join(answer(diagnose(logs, ENTRIES), logs))
    words = ("First cause: rank 2, torchrun_killed.txt:4", "[killed]", "The system ended", "ran out of memory")
    do = ("Read dmesg", "Load the model", "13b_out_of_memory_and_spikes.ipynb", "programs/killed.py", "child_failed")
    for part in words + do:
        assert part in said


def test_the_rank_that_reports_no_timeout_is_named():
    logs = logs_of("only_timeouts")
    diagnosis = diagnose(logs, ENTRIES)
    assert diagnosis.silent == (2,)
    assert any("No timeout is reported by rank 2" in line for line in answer(diagnosis, logs))


def test_a_consequence_alone_says_that_the_first_cause_is_not_there():
    logs = logs_of("only_consequences")
    assert "follows another error, which is not in what I read" in answer(diagnose(logs, ENTRIES), logs)[0]


TIMED = "[rank{}]:[2024-05-01 10:00:0{},000] ERROR {}"
OOM, READY = "CUDA out of memory. Tried to allocate 2 GiB", "Expected to mark a variable ready only once"


@pytest.mark.parametrize(("first", "second", "cause"), [(5, 2, "ready_only_once"), (2, 5, "cuda_out_of_memory")])
def test_of_two_files_the_earlier_by_time_counts(first, second, cause, tmp_path):
    (tmp_path / "rank0.out").write_text(TIMED.format(0, first, OOM) + "\n")
    (tmp_path / "rank1.out").write_text(TIMED.format(1, second, READY) + "\n")
    assert diagnose(read(files_of([str(tmp_path)])), ENTRIES).cause.entry.id == cause


def test_without_times_the_rank_that_torchrun_names_comes_first():
    text = f"[rank4]: RuntimeError: {OOM}\n[rank1]: RuntimeError: {READY}\n"
    table = "Root Cause (first observed failure):\n[0]:\n  time : x\n  host : h\n  rank      : 1 (local_rank: 1)\n"
    assert diagnose([Log(text.encode())], ENTRIES).cause.rank == 4
    assert diagnose([Log((text + table).encode())], ENTRIES).cause.rank == 1


def test_a_frame_of_a_traceback_counts_only_if_the_error_is_of_its_topic():
    """The line of code that raised another error is no message."""
    frames = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 3, in f\n[rank1]:     say("{}")\n'
    )
    text = frames.format(READY) + "[rank1]: ValueError: another\n"
    cause = diagnose([Log(text.encode())], ENTRIES).cause
    assert cause.entry is None and cause.line.text == "ValueError: another"
    same_topic = frames.format(READY) + f"[rank1]: RuntimeError: {OOM}\n"
    assert diagnose([Log(same_topic.encode())], ENTRIES).cause.line.number == 3


def test_the_last_line_of_a_traceback_is_shown_instead_of_the_code_that_says_the_same():
    text = f'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    raise E("{READY}")\nE: {READY}, w1\n'
    assert diagnose([Log(text.encode())], ENTRIES).cause.line.text == f"E: {READY}, w1"


def test_an_unknown_error_without_words_is_shown_with_the_code_that_raised_it():
    text = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    assert a == b\nAssertionError\n'
    logs = [Log(text.encode())]
    assert "AssertionError, raised by: assert a == b" in answer(diagnose(logs, ENTRIES), logs)[0]


@pytest.mark.parametrize(("code", "known"), [(READY, True), ("step()", False)])
def test_the_code_that_raised_an_error_without_words_counts(code, known):
    """`assert x, ...` may raise a bare AssertionError: the line of code that raised it is all there is."""
    frame = '  File "a.py", line 3, in f\n    {}\n'
    text = f"Traceback (most recent call last):\n{frame.format(READY)}{frame.format(code)}AssertionError\n"
    cause = diagnose([Log(text.encode())], ENTRIES).cause
    assert (cause is not None and cause.entry is not None) == known


def test_the_last_error_of_nccl_explains_its_general_message():
    entries = [replace(entry, topic="nccl") for entry in ENTRIES]
    general = f"[rank1]: RuntimeError: {READY}\n[rank1]: {{}}\n[rank1]: {OOM}\n"
    for words, known in (("Last error:", "cuda_out_of_memory"), ("step 3", "ready_only_once")):
        assert diagnose([Log(general.format(words).encode())], entries).cause.entry.id == known


@pytest.mark.parametrize("indent", ["", "  "])
def test_an_error_whose_traceback_has_lost_its_beginning_comes_before_consequences(indent):
    text = f"{indent}KeyError: 'tp'\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    cause = diagnose([Log(text.encode())], ENTRIES).cause
    assert cause.entry is None and cause.line.text == "KeyError: 'tp'"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (f"RuntimeError: {READY}. Set TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL", ERROR),
        (f"[2024-05-01 10:00:00,000] [WARNING] {READY}", WARNING),
        (f"DEBUG:root:{READY}", WARNING),
        (f"[W831 14:46:12.241792627 reducer.cpp:4718] {READY}", WARNING),
        (f"n1:1:1 [0] misc.cc:1 NCCL WARN {READY}", ERROR),
        ("Watchdog caught collective operation timeout", WAIT),
        ("gloo: Connection closed by peer", CONSEQUENCE),
    ],
)
def test_the_kind_of_a_line(line, kind):
    assert diagnose([Log(line.encode())], ENTRIES).cause.kind == kind


def test_a_warning_of_a_socket_explains_a_wait_of_its_topic():
    """A watchdog of another topic, hours later, is not explained by it."""
    warning = "[W1126 10:02:00.0 socket.cpp:1] [c10d] The server socket: Address already in use\n"
    text = (warning + "[rank1]: RuntimeError: joined too late, timed out\n").encode()
    entries = {entry.id: entry for entry in ENTRIES}
    port = replace(entries["address_in_use"], topic="launch")
    late = replace(entries["ready_only_once"], topic="launch", pattern="joined too late")
    assert diagnose([Log(text)], [port, late]).cause.entry == port
    assert diagnose([Log(text)], [port, replace(late, topic="hangs")]).cause.entry.id == late.id


def test_a_rank_survives_a_traceback_that_it_goes_on_after():
    caught = "[rank1]: Traceback (most recent call last):\n[rank1]:   File 'x'\n[rank1]: KeyError: 'cache'\n"
    assert diagnose([Log(caught.encode())], ENTRIES).cause.line.text == "KeyError: 'cache'"
    same_rank = caught + f"[rank1]: step 2\n[rank1]: RuntimeError: {READY}\n"
    assert diagnose([Log(same_rank.encode())], ENTRIES).cause.entry.id == "ready_only_once"
    other_rank = caught + f"[rank0]: step 2\n[rank0]: RuntimeError: {READY}\n"
    assert diagnose([Log(other_rank.encode())], ENTRIES).cause.entry is None


def with_a_family() -> list:
    divide = {"id": "divide", "pattern": "divisible|assert .* % .* == 0", "consequence": False, "signs": ()}
    return [*ENTRIES, replace(next(iter(ENTRIES)), family=True, **divide)]


@pytest.mark.parametrize(
    "end", ["ValueError: layers must be divisible", "    assert n % 4 == 0\nAssertionError", "Error: not divisible"]
)
def test_a_family_explains_a_first_error_that_no_entry_knows(end):
    text = f'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    main()\n{end}\n'
    diagnosis = diagnose([Log(text.encode())], with_a_family())
    assert diagnosis.cause.entry.id == "divide"
    assert answer(diagnosis, [])[0].startswith("I don't know this message, but its kind [divide]")


def test_what_an_error_announces_is_compared_with_families_too():
    text = 'Traceback (most recent call last):\n  File "a.py", line 3\nRuntimeError: no b:\n\n 5 is not divisible\n'
    assert diagnose([Log(text.encode())], with_a_family()).cause.entry.id == "divide"


def test_a_family_never_decides_which_line_is_the_first_cause():
    known = next(entry for entry in ENTRIES if entry.id == "ready_only_once")
    for text in (f"Error: {known.message}, divisible", f"INFO 8 is divisible by 4\nError: {known.message}"):
        assert diagnose([Log(text.encode())], with_a_family()).cause.entry.id == known.id


def test_signs_are_looked_for_in_the_frames_and_the_lines_before_of_the_same_rank():
    entries = [replace(e, near=((2, "step_of_rank_1"),)) for e in ENTRIES if e.id == "ready_only_once"]
    frames = '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "a.py", line 1, in step_of_rank_{0}\n'
    text = frames.format(1) + frames.format(0) + "[rank{}]: RuntimeError: " + READY
    for rank, number in ((1, 2), (0, None)):
        diagnosis = diagnose([Log(text.format(rank).encode())], entries)
        assert diagnosis.cause.entry.signed_cause(diagnosis.cause.line.text, diagnosis.around) == number


def test_an_error_whose_words_begin_on_the_next_line_has_the_kind_of_these_words():
    text = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    raise E\nE.TheError: \n    {}\n'
    for words, known in (("shape '[2, 3]' is invalid for input of size 5", "shapes_do_not_fit"), ("Step 5", None)):
        entry = diagnose([Log(text.format(words).encode())], load().values()).cause.entry
        assert (entry and entry.id) == known


def test_all_causes_are_listed_if_no_word_speaks_for_one_of_them():
    logs = logs_of("pasted_message")
    diagnosis = diagnose(logs, ENTRIES)
    several = replace(diagnosis.cause.entry, causes=("One thing.", "Another thing."))
    said = answer(replace(diagnosis, cause=replace(diagnosis.cause, entry=several)), logs)
    assert "It may be, the most frequent first: (1) One thing. (2) Another thing." in said


def test_a_wait_that_ended_before_an_actor_died_is_the_first_cause():
    wait = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=_ALLGATHER_BASE)\n"
    died = "(raylet) A worker died or was killed while executing a task. Worker exit type: SYSTEM_ERROR\n"
    for text, first in ((wait + died, "watchdog_timeout"), (died + wait, "ray_actor_died")):
        assert diagnose([Log(text.encode())], load().values()).cause.entry.id == first
