"""What comes out of a box is read as it was meant, and a line that would take much memory or time is not."""

import json
import os
import subprocess
import sys
import time

import pytest
from deadlines import deadline_s
from submissions import pickled

from grading.boxes.sandbox.bounded_json_lines import LONGEST, MOST_VALUES, Lines

MANY = MOST_VALUES + 1
MiB = 1 << 20


def read(line: bytes, folder) -> dict:
    (folder / "pipe").write_bytes(line + b"\n")
    source = os.open(folder / "pipe", os.O_RDONLY)
    try:
        lines = Lines(source)
        while (found := lines.poll()) is None:
            pass
        return found
    finally:
        os.close(source)


REPLIES = {
    "what looks like many values": {"text": ',[{"' * MANY + "\\"},
    "many values": {"numbers": list(range(MOST_VALUES - 10))},
    "other letters": {"ad": "Şule ✓ 😀"},
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_what_was_sent_is_what_is_read(reply, tmp_path):
    assert read(json.dumps(reply).encode(), tmp_path) == reply


BOMBS = {
    "lists": b'{"a":[' + b"[]," * MANY + b"0]}",
    "objects": b'{"a":[' + b'{"":0},' * MANY + b"0]}",
    "texts": b'{"a":[' + b'"",' * MANY + b"0]}",
    "numbers": b'{"a":[' + b"7," * MANY + b"0]}",
    "escapes": b'"' + rb"\"" * (LONGEST // 2 - 1),
    "quotes": b'"' * LONGEST,
    "wide letters": json.dumps({"a": "x" * (20 * MiB) + "😀"}, ensure_ascii=False).encode(),
    "length": b"{" + b" " * LONGEST + b"}",
    "depth": b'{"a":' + b"[" * 100_000,
}


@pytest.mark.parametrize("line", BOMBS.values(), ids=BOMBS)
def test_what_would_take_much_is_refused_at_once(line, tmp_path):
    begin = time.monotonic()
    with pytest.raises(ValueError, match="too long|not readable"):
        read(line, tmp_path)
    assert time.monotonic() - begin < 60  # it takes less than two; tries without end took minutes


def test_a_crew_replies_less(referee):
    answer = pickled("def plan(**_): return [0] * (1 << 18)", "plan")
    verdict = referee.judge({"lab2.plan": answer}, only="lab2.plan")[0]
    assert verdict.points == 0
    assert "the reply is too long" in verdict.text()


def test_the_largest_line_takes_little_more_than_its_own_memory(tmp_path):
    """Lists in lists, as many as a line holds: parsed, they would be 2.8 GB."""
    (tmp_path / "pipe").write_bytes(b'{"a":[' + b"[]," * ((LONGEST - 10) // 3) + b"0]}\n")
    source = """if True:
        import os, sys
        from grading.boxes.sandbox.bounded_json_lines import Lines
        lines = Lines(os.open(sys.argv[1], os.O_RDONLY))
        try:
            while lines.poll() is None:
                pass
        except ValueError as error:
            print(error)
        print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))"""
    command = [sys.executable, "-c", source, tmp_path / "pipe"]
    said, peak_kib = subprocess.run(
        command, capture_output=True, text=True, timeout=deadline_s(60), check=True
    ).stdout.splitlines()
    assert said == "the reply is too long"
    assert int(peak_kib) >> 10 < 5 * LONGEST // MiB
