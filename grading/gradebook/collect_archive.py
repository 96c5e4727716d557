"""Sort a learning platform's archive into students' folders, as nbgrader does, but by the names that the platform gave.

What a student packed may have any name inside, also that of another student: so only the first folder, or the name that
the platform gave to a file, says whose it is. An archive in the archive is a student's, and is not unpacked.
"""

import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from nbgrader.plugins.zipcollect import ExtractorPlugin, FileNameCollectorPlugin

from grading.gradebook.inspect_files import MOST_NOTEBOOK_BYTES

_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar")


class Extractor(ExtractorPlugin):
    """Take the notebooks out of the archives in a folder, each into a folder of the archive's name."""

    def extract(self, archive_path: str, extracted_path: str) -> None:
        for at, _, names in os.walk(archive_path):
            to = Path(extracted_path, Path(at).relative_to(archive_path))
            for name in names:
                if name.endswith(_ARCHIVES):
                    self._unpack(Path(at, name), to / _stem(name))
                elif name.endswith(".ipynb"):
                    to.mkdir(parents=True, exist_ok=True)
                    shutil.copy(Path(at, name), to)

    def _unpack(self, archive: Path, to: Path) -> None:
        for name, stream in _members(archive):
            place = PurePosixPath(name)
            if name.endswith(_ARCHIVES):
                self.log.warning("%a in %s is an archive: look into it, and unpack it by hand", name, archive.name)
            if not name.endswith(".ipynb") or place.is_absolute() or ".." in place.parts:
                continue
            with stream:
                text = stream.read(MOST_NOTEBOOK_BYTES + 1)  # a little more than graded: grading then says so
            (to / place).parent.mkdir(parents=True, exist_ok=True)
            (to / place).write_bytes(text)


class Collector(FileNameCollectorPlugin):
    """Match `named_regexp` from the first folder of an archive on, and not from wherever it fits."""

    def _match(self, filename: str) -> dict | None:
        app = self.parent
        place = Path(filename).relative_to(app._format_collect_path(app.extracted_directory))
        archives = {_stem(name) for name in os.listdir(app._format_collect_path(app.archive_directory))}
        if len(place.parts) > 1 and place.parts[0] in archives:
            place = place.relative_to(place.parts[0])
        return super()._match(str(place))


def _stem(name: str) -> str:
    return next((name.removesuffix(end) for end in _ARCHIVES if name.endswith(end)), "")


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield an archive's plain files, with their names."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            for member in packed.infolist():
                if not member.is_dir():
                    yield member.filename, packed.open(member)
    else:
        with tarfile.open(archive) as packed:
            for member in packed:
                if member.isfile():
                    yield member.name, packed.extractfile(member)
