"""What decides between causes and between lines: hints, the last frame, a common collective, and who says more."""

from dataclasses import replace

import pytest

from shardwhy.answer import answer
from shardwhy.first_cause import WARNING, diagnose
from shardwhy.index import load
from shardwhy.logs import Log

ENTRIES = load()
NCCL = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error, NCCL version 2.21"
WAIT = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType=ALLREDUCE, NumelIn=8, x=1)\n"


def diagnosis_of(text: str, entries=None):
    return diagnose([Log(text.encode())], ENTRIES.values() if entries is None else entries)


def test_a_hint_puts_a_cause_first_and_leaves_the_others_there():
    entry = replace(ENTRIES["ready_only_once"], causes=("One.", "Two."), signs=(), near=(), hints=((2, "srun: "),))
    message = f"RuntimeError: {entry.message}\n"
    for before, causes in (("srun: x\n", "the likeliest first: (1) Two. (2) One."), ("", "(1) One. (2) Two.")):
        assert causes in "\n".join(answer(diagnosis_of(before + message, [entry]), []))


@pytest.mark.parametrize("gap", ["", "\n"])
def test_the_last_frame_of_a_traceback_is_among_the_words_around(gap):
    frame = '  File "/home/user/{0}.py", line 3, in {0}\n    {0}(x)\n    ~~~^^^\n'
    text = f"Traceback (most recent call last):\n{frame.format('train')}{frame.format('loss')}{gap}KeyError: 'x'\n"
    words = diagnosis_of(text).around
    assert "\nlast frame: /home/user/loss.py in loss: loss(x)" in words and words.count("last frame: ") == 1
    assert "last frame: " not in diagnosis_of("step 3\nKeyError: 'x'\n").around


@pytest.mark.parametrize(
    ("ranks", "calls", "same"), [((0, 1), (5, 5), True), ((0, 1), (5, 6), False), ((0,), (5,), False)]
)
def test_it_is_said_if_all_ranks_wait_in_one_collective(ranks, calls, same):
    text = "".join(WAIT.format(rank, call) for rank, call in zip(ranks, calls, strict=True))
    assert ("all ranks wait in the same collective" in diagnosis_of(text).around) == same


def test_what_nccl_says_comes_before_the_general_message_below_it():
    warned = "node1:10:42 [0] NCCL WARN Call to ibv_modify_qp failed with error Connection timed out\n"
    own = diagnosis_of(warned).cause.entry
    assert own and own.id != diagnosis_of(NCCL).cause.entry.id
    assert diagnosis_of(warned + NCCL).cause.entry == own
    assert diagnosis_of(NCCL + "\n" + warned).cause.line.text == NCCL


def test_an_error_without_a_rank_may_come_before_that_of_the_rank_that_torchrun_names():
    message = f"RuntimeError: {ENTRIES['ready_only_once'].message}"
    memory = "RuntimeError: CUDA error: out of memory"
    table = "Root Cause (first observed failure):\n[0]:\n  time : x\n  host : h\n  rank      : 1 (local_rank: 1)\n"
    assert diagnosis_of(f"{message}\n[rank1]: {memory}\n{table}").cause.entry.id == "ready_only_once"


@pytest.mark.parametrize(
    "follows",
    [
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "RuntimeError: Failed to unpickle serialized exception",
        "KeyError: Caught KeyError in pin memory thread for device 0.",
        "ValueError: Caught ValueError in replica 1 on device 1.",
        "RuntimeError: Traceback (most recent call last):",
        "ray.exceptions.ActorHandleNotFoundError: the actor handle was created in job 01000000",
    ],
)
def test_an_error_that_only_passes_another_on_is_not_the_first_cause(follows):
    cause = diagnosis_of(f"{follows}\nOriginal Traceback:\n  File 'a.py'\nKeyError: 'a word of this test'\n").cause
    assert cause.line.text == "KeyError: 'a word of this test'"


def test_a_message_at_the_level_of_info_is_no_error():
    waits = "[I715 22:47:11.2 socket.cpp:872] [c10d] No socket on (localhost, 0) is listening yet, will retry.\n"
    found = diagnosis_of(waits).cause
    assert (found.kind, found.entry.id) == (WARNING, "store_connection_refused")
    error = "Traceback (most recent call last):\n  File 'a.py', line 3\nKeyError: 'a word of this test'\n"
    assert diagnosis_of(waits + error).cause.line.text == "KeyError: 'a word of this test'"


@pytest.mark.parametrize(
    ("made_by", "sure", "likely"),
    [
        (", which is output 0 of Sigmoid,", 2, None),
        (", which is output 0 of TanhBackward0,", 2, None),
        (", which is output 0 of AsStridedBackward0,", None, 3),
        ("", None, None),
    ],
)
def test_what_made_a_tensor_tells_who_may_have_changed_it(made_by, sure, likely):
    entry = ENTRIES["modified_by_inplace"]
    text = f"RuntimeError: {entry.message}: [torch.FloatTensor [3]]{made_by} is at version 1; expected version 0"
    assert (entry.signed_cause(text), entry.hinted_cause(text)) == (sure, likely)


def test_of_two_lists_of_keys_in_one_message_the_one_that_says_more_is_named():
    log = """RuntimeError: Error(s) in loading state_dict for Sequential:
\tMissing key(s) in state_dict: "0.weight", "0.bias".
\tUnexpected key(s) in state_dict: "0._fsdp_wrapped_module.weight", "0._fsdp_wrapped_module.bias".
"""
    assert diagnose([Log(log.encode())], load().values()).cause.entry.id == "prefix_fsdp_wrapped_module"
    plain = log.replace("_fsdp_wrapped_module.", "")
    assert diagnose([Log(plain.encode())], load().values()).cause.entry.id == "missing_keys"
