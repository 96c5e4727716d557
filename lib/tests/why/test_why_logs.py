"""Lines of logs: prefixes of ranks, times, colours, progress bars, files and folders."""

import pytest

from shardwhy.logs import CannotRead, Log, files_of, rank_of, read, time_of


def only_line(text: str, name: str = "", rank: int | None = None):
    (line,) = Log(text.encode(), name, rank).lines_with(["boom"])
    return line


@pytest.mark.parametrize(
    ("text", "rank", "left"),
    [
        ("boom", None, "boom"),
        ("[rank3]: boom", 3, "boom"),
        ("[rank12]:   boom", 12, "  boom"),
        ("[default3]:boom", 3, "boom"),
        ("3: boom", 3, "boom"),
        ("0: [rank13]: boom", 13, "boom"),  # srun's number is the node's, torchrun's is the rank's
        ("[rank13]: 4: boom", 13, "boom"),
        ("[rank 2] boom", 2, "boom"),
        ("[1,5]<stderr>:boom", 5, "boom"),
        ("[80746] [rank0]: boom", 0, "boom"),
        ("worker-1: [rank9]: boom", 9, "boom"),
        ("2024-05-01T10:00:00.123Z [rank1]: boom", 1, "boom"),
        ("2024-11-20 14:37:16 [rank3]: boom", 3, "boom"),
        ("> [rank1]: boom", 1, "boom"),
        ("10.3.0.22: [rank1]: boom", 1, "boom"),
        ("2025-10-31 03:11:02,473 - Trainer - INFO - [rank7]:   boom", 7, "  boom"),
        ("RuntimeError: [4]: boom", 4, "RuntimeError: [4]: boom"),
        ("[E ProcessGroupNCCL.cpp:458] [Rank 7] boom", 7, "[E ProcessGroupNCCL.cpp:458] [Rank 7] boom"),
        ("LaunchError: rank 2 of 4 raised boom", 2, "LaunchError: rank 2 of 4 raised boom"),
        ("srun: error: n1: task 3: boom", 3, "srun: error: n1: task 3: boom"),
        ("\x1b[31m[rank4]:\x1b[0m \x1b]8;;x\x07boom", 4, "boom"),
        ("10:00:01 boom", None, "10:00:01 boom"),
    ],
)
def test_a_line_loses_its_prefix_and_keeps_its_rank(text, rank, left):
    line = only_line(text)
    assert (line.rank, line.text) == (rank, left)


def test_a_rank_may_be_named_above():
    assert rank_of(only_line("  rank      : 12 (local_rank: 4)\n  exitcode  : boom")) == 12
    assert rank_of(only_line("-- Process 3 terminated with the following error:\nboom")) == 3
    assert rank_of(only_line("something else\nboom")) is None


@pytest.mark.parametrize("name", ["rank_3", "log-rank3", "worker.3"])
def test_a_file_may_be_named_after_its_rank(name, tmp_path):
    (tmp_path / f"{name}.out").write_text("boom")
    assert read(files_of([str(tmp_path / f"{name}.out")]))[0].rank == 3


def test_the_folder_that_torchrun_writes_tells_ranks(tmp_path):
    for rank in (0, 1):
        folder = tmp_path / "none_x" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(f"line of {rank}")
        (folder / "core").write_bytes(b"\x7fELF\0\0")
    assert [(log.rank, log.name) for log in read(files_of([str(tmp_path)]))] == [
        (rank, f"none_x/attempt_0/{rank}/stderr.log") for rank in (0, 1)
    ]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("[E321 02:07:08.5 x.cpp:607] boom", "[2025-03-21 02:07:08,500] boom"),
        ("E0321 02:07:08 boom", "03/21/2024 02:07:08 - boom"),
        ("  time : 2024-03-21_02:07:08\nboom", "2024/03/21 02:07:08 boom"),
        ("[rank1]: 2024-03-21T02:07:08\n[rank0]: 2024-03-21T03:00:00\n[rank1]: boom", "W0321 02:07:08 boom"),
    ],
)
def test_times_of_all_forms_agree(text, same):
    assert time_of(only_line(text)) == time_of(only_line(same)) is not None


def test_a_later_time_is_greater():
    earlier = time_of(only_line("E1126 23:59:59 boom"))
    assert earlier < time_of(only_line("2024-11-27 00:00:00 boom")) < time_of(only_line("E1201 00:00:00 boom"))
    assert time_of(only_line("no time here\nboom")) is None


def test_a_carriage_return_ends_a_line_but_is_not_counted():
    log = Log(b"a\r\nb\rbar 10%\rbar 20%boom\rbar 30%\nboom")
    lines = log.lines_with(["boom"])
    assert [(line.text, line.number) for line in lines] == [("bar 20%boom", 2), ("boom", 3)]


def test_lines_after_and_before():
    log = Log(b"one\ntwo\rboom\nthree\n\nfour")
    (line,) = log.lines_with(["boom"])
    assert [(x.text, x.number) for x in log.after(line)] == [("three", 3), ("", 4), ("four", 5)]
    assert [(x.text, x.number) for x in log.before(line)] == [("two", 2), ("one", 1)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: None, "no such file or folder"),
        (lambda p: p.write_bytes(b"PK\0\0"), "is not a text file"),
        (lambda p: p.mkdir(), "the folder is empty"),
    ],
)
def test_what_cannot_be_read_is_told(make, words, tmp_path):
    make(tmp_path / "thing")
    with pytest.raises(CannotRead, match=f"thing.*{words}"):
        read(files_of([str(tmp_path / "thing")]))
