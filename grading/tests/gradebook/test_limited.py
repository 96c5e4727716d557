"""What reads or shows a student's work has limits of time and memory, and ends nobody else."""

import os
import time

import pytest

from grading.gradebook.limited import LimitError, limited


def endless() -> None:
    while True:
        pass


def large() -> int:
    return len(bytearray(600 << 20))


def test_a_result_and_an_error_come_back():
    assert limited(str.upper, "x") == "X"
    with pytest.raises(ZeroDivisionError):
        limited(lambda: 1 // 0)


def test_a_result_that_cannot_be_sent_is_an_error():
    with pytest.raises(RuntimeError):
        limited(lambda: lambda: 1)


def test_what_takes_too_long_is_ended():
    began = time.monotonic()
    with pytest.raises(LimitError, match="more than 1 s"):
        limited(endless, cpu_s=1)
    assert time.monotonic() - began < 20


def test_what_needs_too_much_memory_is_ended():
    assert limited(large) == 600 << 20
    with pytest.raises(LimitError, match="more than 512 MiB"):
        limited(large, memory=512 << 20)


def test_what_waits_is_ended(monkeypatch):
    monkeypatch.setattr("grading.gradebook.limited._PATIENCE", 1)
    with pytest.raises(LimitError):
        limited(time.sleep, 600, cpu_s=1)


def test_what_ends_the_child_ends_nobody_else():
    with pytest.raises(LimitError):
        limited(os._exit, 1)
