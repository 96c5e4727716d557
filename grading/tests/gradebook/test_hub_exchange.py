"""The exchange that students share with the instructor: what lies there is theirs to change, and does no harm."""

import getpass
import io
import os
import pwd
import shutil
import zipfile
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from nbgrader.apps.zipcollectapp import ZipCollectApp
from nbgrader.exchange import ExchangeError
from nbgrader.exchange.exchange_factory import ExchangeFactory
from submissions import LAB
from traitlets.config import Config

from grading.gradebook import hub_exchange
from grading.gradebook.inspect_files import _inspect_time
from grading.gradebook.nbgrader_classroom import Classroom

ME, SECRET = getpass.getuser(), "what only the instructor may read"


@pytest.fixture
def hub(released, tmp_path, monkeypatch):
    """hub.collect(), hub.release_feedback(); hub.inbound(student) makes a folder as `nbgrader submit` does."""
    shutil.copytree(released, tmp_path, dirs_exist_ok=True)
    (tmp_path / "exchange" / "shardlab" / "inbound").mkdir(parents=True)
    (tmp_path / "secrets").mkdir()
    for name in (f"{LAB}.ipynb", "timestamp.txt"):
        (tmp_path / "secrets" / name).write_text(SECRET if name.endswith("ipynb") else "2026-11-22 16:00:00 UTC")
    students = {}
    monkeypatch.setattr(hub_exchange.pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=students.get("owner", ME)))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=students.get("owner", ME)))
    with closing(Classroom(tmp_path, Config({"Exchange": {"root": str(tmp_path / "exchange")}}))) as classroom:

        def inbound(student: str, minute: int = 0, text: str = "{}") -> Path:
            at = f"2026-11-22 16:{minute:02}:00 UTC"
            folder = tmp_path / "exchange" / "shardlab" / "inbound" / f"{student}+{LAB}+{at}+x"
            folder.mkdir(mode=0o777)
            (folder / f"{LAB}.ipynb").write_text(text)
            (folder / "timestamp.txt").write_text(at)
            (folder / "submission_secret.txt").write_text("secret")
            return folder

        def run(kind: str, **options) -> None:
            coursedir = classroom.api.coursedir
            coursedir.assignment_id = LAB
            made = getattr(ExchangeFactory(config=classroom.config), kind)(
                coursedir=coursedir, authenticator=classroom.api.authenticator, config=classroom.config
            )
            for name, value in options.items():
                setattr(made, name, value)
            made.start()

        yield SimpleNamespace(
            root=tmp_path,
            classroom=classroom,
            students=students,
            inbound=inbound,
            collect=lambda **options: run("Collect", **options),
            release_feedback=lambda: run("ReleaseFeedback"),
        )


def test_what_is_collected_is_the_students_and_nobody_elses_to_read(hub):
    hub.inbound(ME)
    hub.collect()
    folder = hub.classroom.submitted(LAB, ME)
    assert sorted(p.name for p in folder.iterdir()) == [f"{LAB}.ipynb", "submission_secret.txt", "timestamp.txt"]
    assert {p.stat().st_mode & 0o777 for p in folder.iterdir()} == {0o600}
    assert {folder.stat().st_mode & 0o777, folder.parents[1].stat().st_mode & 0o777} == {0o700}


def replaced_by_a_link(folder: Path, secret: Path) -> None:
    (folder / f"{LAB}.ipynb").unlink()
    (folder / f"{LAB}.ipynb").symlink_to(secret)


def a_linked_folder(folder: Path, secret: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to(secret.parent)


LINKS = {"a file": replaced_by_a_link, "the folder": a_linked_folder}


@pytest.mark.parametrize("spoil", LINKS.values(), ids=LINKS)
def test_a_link_is_not_followed_and_stops_no_other(spoil, hub):
    spoil(hub.inbound("eve"), hub.root / "secrets" / f"{LAB}.ipynb")
    hub.inbound(ME)
    with pytest.raises(ExchangeError, match="'eve' is not collected: .* is a link"):
        hub.collect(check_owner=False)
    assert not hub.classroom.submitted(LAB, "eve").exists()
    assert hub.classroom.submitted(LAB, ME).is_dir()


@pytest.mark.parametrize("spoil", LINKS.values(), ids=LINKS)
def test_a_link_that_takes_the_place_of_a_file_after_it_was_inspected_is_not_followed(spoil, hub, monkeypatch):
    folder = hub.inbound("eve")
    monkeypatch.setattr(hub_exchange, "inspect", lambda path: spoil(folder, hub.root / "secrets" / f"{LAB}.ipynb"))
    monkeypatch.setattr(hub_exchange, "_owner", lambda path: os.getuid() + (spoil is a_linked_folder))
    with suppress(ExchangeError):
        hub.collect(check_owner=False)
    found = [p for p in hub.classroom.submitted(LAB, "eve").rglob("*") if p.is_file() and not p.is_symlink()]
    assert not [p for p in found if p.read_text() == SECRET]


def a_pipe_for_the_time(folder: Path) -> None:
    (folder / "timestamp.txt").unlink()
    os.mkfifo(folder / "timestamp.txt")


def a_large_file(folder: Path) -> None:
    with (folder / "large").open("wb") as file:
        file.truncate(1 << 40)


def folders_in_each_other(folder: Path) -> None:
    (folder / "/".join("d" * 900)).mkdir(parents=True)


MEANWHILE = {"pipe": a_pipe_for_the_time, "large file": a_large_file, "folders": folders_in_each_other}


@pytest.mark.parametrize("spoil", MEANWHILE.values(), ids=MEANWHILE)
def test_what_changes_after_it_was_inspected_stops_no_other(spoil, hub, monkeypatch):
    """And what it would take without end is not waited for, and not copied."""
    folder = hub.inbound("eve")
    hub.inbound(ME)
    monkeypatch.setattr(hub_exchange, "inspect", lambda path: spoil(folder) if path == folder else None)
    with pytest.raises(ExchangeError, match="'eve' is not collected"):
        hub.collect(check_owner=False)
    assert not hub.classroom.submitted(LAB, "eve").exists()
    assert hub.classroom.submitted(LAB, ME).is_dir()


def test_a_pipe_that_takes_the_place_of_a_time_while_it_is_inspected_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "timestamp.txt")
    _inspect_time(tmp_path / "timestamp.txt")


def test_a_folder_of_somebody_else_is_not_collected(hub):
    hub.inbound("ada")
    with pytest.raises(ExchangeError, match=f"'ada' is not collected: .* belongs to {ME}"):
        hub.collect()
    hub.collect(check_owner=False)
    assert hub.classroom.submitted(LAB, "ada").is_dir()


def test_a_later_submission_takes_the_place_of_the_earlier_one_only_when_it_is_whole(hub):
    hub.inbound(ME)
    hub.collect()
    later = hub.inbound(ME, 1, "later")
    (later / "link").symlink_to("/etc/hostname")
    with pytest.raises(ExchangeError):
        hub.collect(update=True)
    assert (hub.classroom.submitted(LAB, ME) / f"{LAB}.ipynb").read_text() == "{}"
    (later / "link").unlink()
    hub.collect()
    assert (hub.classroom.submitted(LAB, ME) / f"{LAB}.ipynb").read_text() == "{}", "only with --update"
    hub.collect(update=True)
    assert (hub.classroom.submitted(LAB, ME) / f"{LAB}.ipynb").read_text() == "later"


def test_a_backdated_time_is_told(hub, caplog):
    (hub.inbound("eve") / "timestamp.txt").unlink()
    hub.inbound(ME)
    with caplog.at_level("WARNING", "traitlets"):
        hub.collect(check_owner=False)
    assert f"eve+{LAB}+2026-11-22 16:00:00 UTC+x' has no timestamp.txt" in caplog.text
    assert "says that it was handed in at 2026-11-22 16:00:00 UTC, and was written at" in caplog.text


def test_pages_of_a_class_that_hands_in_both_ways_are_released(hub):
    of_the_hub = ["timestamp.txt", "submission_secret.txt"]
    for student, files in {"ada": of_the_hub, "bob": [], "carl": of_the_hub[:1]}.items():
        folder = hub.root / "grading" / "feedback" / student / LAB
        folder.mkdir(parents=True)
        for name in (f"{LAB}.html", *files):
            (folder / name).write_text(student)
    hub.release_feedback()
    released = list((hub.root / "exchange" / "shardlab" / "feedback").iterdir())
    assert [page.read_text() for page in released] == ["ada"]


ARCHIVE = {
    "ada/lab2_ddp.ipynb": "ada",
    "team_7/lab2_ddp.ipynb": "team_7",
    "Bob Moe_12345_assignsubmission_file_/lab2_ddp.ipynb": "Bob Moe",
    "lovelaceada_123_4567_lab2_ddp-1.ipynb": "lovelaceada",
    "moebob_late_123_4567_lab2_ddp.ipynb": "moebob",
    "carl/lab2_ddp (1).ipynb": "carl",
}


def packed(files: dict[str, str | bytes]) -> bytes:
    with zipfile.ZipFile(whole := io.BytesIO(), "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return whole.getvalue()


FOREIGN = {  # what eve packed, in the names of others
    "eve_123_assignsubmission_file_/bob_1_2_lab2_ddp.ipynb": "eve",
    "eve_123_assignsubmission_file_/bob/lab2_ddp.ipynb": "eve",
    "eve_123_456_bob.zip": packed({"bob/lab2_ddp.ipynb": "eve", "bob_1_2_lab2_ddp.ipynb": "eve"}),
    "../bob/lab2_ddp.ipynb": "eve",
    "eve/bomb.ipynb": bytes(30 << 20),
}


def collected(hub, files: dict[str, str | bytes]) -> dict[str, Path]:
    """Each student's notebook after `nbgrader zip_collect`."""
    archive = hub.root / "grading" / "downloaded" / LAB / "archive"
    archive.mkdir(parents=True)
    (archive / "all.zip").write_bytes(packed(files))
    app = ZipCollectApp(config=hub.classroom.config)
    app.coursedir = hub.classroom.api.coursedir
    app.coursedir.assignment_id = LAB
    app.init_plugins()
    app.extract_archive_files()
    app.process_extracted_files()
    return {s: (hub.classroom.submitted(LAB, s) / f"{LAB}.ipynb") for s in hub.classroom.students(LAB)}


def test_the_archive_of_a_learning_platform_is_sorted_into_folders(hub):
    """As grading/README.md says."""
    found = collected(hub, {name: name for name in ARCHIVE})
    assert {file.read_text(): student for student, file in found.items()} == ARCHIVE


def test_nobody_hands_in_for_somebody_else_by_the_names_inside(hub):
    found = collected(hub, FOREIGN | {"bob_7_8_lab2_ddp.ipynb": "bob"})
    assert {student: file.read_text() for student, file in found.items()} == {"bob": "bob"}
    extracted = hub.root / "grading" / "downloaded" / LAB / "extracted"
    assert not [file for file in extracted.rglob("*") if file.is_file() and file.stat().st_size > 21 << 20]
    assert not (extracted.parent / "bob").exists()
