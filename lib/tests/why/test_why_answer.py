"""What an answer says of an error that the index knows only by its kind: where it was raised, and by whose code."""

import pytest

from shardwhy.answer import answer
from shardwhy.first_cause import diagnose
from shardwhy.index import load
from shardwhy.logs import Log

ENTRIES = load()
LIBRARY = "/opt/env/lib/python3.11/site-packages/accelerate/utils.py"


def answer_to(text: str) -> list[str]:
    logs = [Log(text.encode())]
    return answer(diagnose(logs, ENTRIES.values()), logs)


def traceback_of(*frames: tuple[str, str], error: str, prefix: str = "") -> str:
    lines = ["Traceback (most recent call last):"]
    for number, (file, code) in enumerate(frames, 7):
        lines += [f'  File "{file}", line {number}, in f', f"    {code}", "    ~~~^^^"]
    return "".join(f"{prefix}{line}\n" for line in [*lines, error])


def test_the_line_of_the_programs_own_code_is_named_beside_the_librarys():
    frames = ("/home/user/train.py", "trainer.train()"), (LIBRARY, "load(x)")
    said = answer_to("[rank0]: step 3\n" + traceback_of(*frames, error="KeyError: 'a'", prefix="[rank3]: "))
    assert "rank 3" in said[0]
    assert "(at accelerate/utils.py:8; the program's own code: user/train.py:7: trainer.train())" in said[1]


def test_an_error_in_the_programs_own_code_is_named_with_the_code():
    said = answer_to(traceback_of(("main.py", "main()"), ("/home/user/loss.py", "x = b['a']"), error="KeyError: 'a'"))
    assert "KeyError: 'a' (at user/loss.py:8: x = b['a'])" in said[1]


def test_frames_of_another_traceback_and_of_other_ranks_do_not_count():
    first = traceback_of(("/home/user/first.py", "first()"), error="OSError: x")
    other = '[rank1]:   File "/home/user/other.py", line 3, in g\n[rank1]:     g()\n'
    second = traceback_of((LIBRARY, "load(x)"), error="KeyError: 'a'")
    text = first + "\nDuring handling of the above exception, another exception occurred:\n\n" + second
    assert "first.py" not in answer_to(text.replace("OSError: x", "OSErrors"))[1]
    mixed = traceback_of((LIBRARY, "load(x)"), error="KeyError: 'a'", prefix="[rank0]: ").replace(
        "[rank0]: KeyError", other + "[rank0]: KeyError"
    )
    assert "other.py" not in answer_to(mixed)[1]


def test_a_frame_in_a_box_is_read():
    box = "│ /home/user/train.py:88 in main                     │\n│   87 │   x = f(y)                        │\n"
    said = answer_to("╭──── Traceback (most recent call last) ────╮\n" + box + "╰────────╯\nKeyError: 'a'\n")
    assert "(at user/train.py:88" in said[1]


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: the flux of ranks has no end",
        "AssertionError: a replica with two heads",
        "tuner.errors.TemplateMissing: chat-v9",
    ],
)
def test_a_sentence_that_no_entry_knows_is_of_the_last_kind(error):
    said = answer_to(traceback_of(("train.py", "f()"), error=error))
    assert said[0].startswith("I don't know this message, but its kind [sentence_of_a_check].")
    assert error in said[1] and "train.py:7: f()" in said[1]


def test_of_lines_below_the_level_of_an_error_a_warning_comes_before_an_information():
    lines = "n1:1:1 [0] NCCL INFO NET/Plugin: Failed to find a symbol\nn1:1:1 [0] NCCL WARN NET: failed to start\n"
    assert "line 2" in answer_to(lines)[0]


@pytest.mark.parametrize(
    ("caller", "named"), [("/env/lib/python3.11/site-packages/nemo/fit.py", True), ("/home/user/fit.py", False)]
)
def test_the_package_that_makes_the_call_is_named_if_the_program_does_not_make_it(caller, named):
    torch = "/env/lib/python3.11/site-packages/torch/nn/functional.py"
    error = "RuntimeError: Trying to backward through the graph a second time"
    said = answer_to(traceback_of(("/home/user/train.py", "fit()"), (caller, "f()"), (torch, "g()"), error=error))
    assert "[backward_a_second_time]" in said[0]
    assert ("may be that of nemo, which makes the call" in said[3]) == named


def test_the_words_of_an_error_of_cpp_come_before_the_line_that_announces_it():
    lines = "terminate called after throwing an instance of 'c10::Error'\n  what():  the flux has an Error of its own\n"
    assert "line 2" in answer_to(lines)[0] and "the flux" in answer_to(lines)[0]
