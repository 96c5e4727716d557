"""A class on a real JupyterHub of this machine, set up as grading/README.md says: an instructor and students who are
users of the system, the students' environment with a kit's wheel, the instructor's course, and an exchange.

Homes, course, exchange and environment are in one temporary folder, and go with the users when the class ends.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import psutil
from course_copy import ROOT, copy_course
from deadlines import deadline_s
from lab import MissingBrowser, check_installed

LAB = "lab3_zero"
PASSWORD = secrets.token_hex(8)
_SETTINGS = ("pyproject.toml", "environment.yml", "constraints.txt", "LICENSE", "LICENSE-prose.md")
_PARTS = ("course", f"solutions/{LAB}", f"labs/{LAB}", "grading", "lib", *_SETTINGS)
_PROGRAMS = ("useradd", "userdel", "runuser")
_SCRIPTS = ("jupyterhub-singleuser", "configurable-http-proxy", "nbgrader")
_CONFIGURATION = """
c.JupyterHub.bind_url = "http://127.0.0.1:{ports[0]}"
c.JupyterHub.hub_port = {ports[1]}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{ports[2]}"
c.JupyterHub.authenticator_class = "dummy"  # who are the users is the system's business: see Spawner
c.DummyAuthenticator.password = "{password}"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "jupyterhub.spawner.LocalProcessSpawner"
c.Spawner.args = ["--LabApp.expose_app_in_browser=True"]  # for the test to call
c.Spawner.start_timeout = c.Spawner.http_timeout = {patience}
"""


def obstacle() -> str:
    """Return why no class can be on a hub here, or "" if it can."""
    if os.geteuid():
        return "a hub starts servers of other users, and so wants to be root"
    if missing := [name for name in _PROGRAMS if not shutil.which(name)]:
        return f"no {', '.join(missing)} here"
    if missing := [name for name in ("jupyterhub", "configurable_http_proxy") if not find_spec(name)]:
        return f"no {', '.join(missing)} here: `make hub` installs them"
    try:
        check_installed()
    except MissingBrowser as missing:
        return str(missing)
    tried = [*_as("nobody"), sys.executable, "-c", "import torch"]
    done = subprocess.run(tried, cwd="/", capture_output=True, text=True, check=False)
    why = f"other users can't run {sys.executable}: {done.stderr.strip()[-200:]}. `make setup PYTHON=/usr/bin/python3`"
    return f"{why} makes a .venv from another Python" if done.returncode else ""


def block_of_readme(word: str) -> str:
    """Return the block of settings in grading/README.md that has this word."""
    blocks = re.findall(r"^```(?:python)?\n(.*?)^```$", (ROOT / "grading" / "README.md").read_text(), re.M | re.S)
    (found,) = [block for block in blocks if word in block]
    return found


def _with(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} is not once in {text}"
        text = text.replace(old, new)
    return text


class HubClass:
    """The instructor, the students, and where their things are; `url` of the hub, once it was started."""

    def __init__(self, folder: Path) -> None:
        mark = secrets.token_hex(3)
        self.instructor, *self.students = (f"{role}{mark}" for role in ("prof", "ada", "bob"))
        self.users = (self.instructor, *self.students)
        self.folder, self.exchange, self.environment = folder, folder / "exchange", folder / "hub"
        self.course = self.home(self.instructor) / "shardlab"
        self.url = ""
        self.left: list[str] = []  # what users' processes the hub's end has left
        self.end = ExitStack().close

    def home(self, user: str) -> Path:
        return self.folder / "homes" / user

    def run(self, user: str, *command: str | Path, cwd: Path) -> str:
        """Return what a command of this user says; `shardlab` and `nbgrader` are those of the course."""
        program, *arguments = command
        called = [self.course / ".venv" / "bin" / program, *arguments]
        settings = {"HOME": self.home(user), "PATH": _path(self.course / ".venv"), "COLUMNS": "200", "LANG": "C.UTF-8"}
        settings["PYTHONPATH"] = _pythonpath(self.course)
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, "text": True}
        done = subprocess.run([*_as(user), *called], cwd=cwd, env=settings, check=False, **streams)
        assert done.returncode == 0, f"{command}: {done.stdout}"
        return done.stdout

    def processes(self) -> list[psutil.Process]:
        return [p for p in psutil.process_iter(["username"]) if p.info["username"] in self.users]


@contextmanager
def class_on_a_hub() -> Iterator[HubClass]:
    """Make users, course and environment, and start the hub. `end`, or the end of the block, removes all of it."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="shardlab-hub-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        people = HubClass(folder)
        people.end = stack.close
        (folder / "homes").mkdir(mode=0o755)
        for user in people.users:
            home = [f"--base-dir={folder / 'homes'}", "--create-home", "--key=HOME_MODE=0700", "--shell=/bin/bash"]
            subprocess.run(["useradd", *home, user], check=True)
            stack.callback(_remove, user, people)
        people.exchange.mkdir()
        people.exchange.chmod(0o1777)
        _make_course(people)
        people.run(people.instructor, "shardlab", "kit", "--out", "../kit", "--seeds", "1", cwd=people.course)
        _make_environment(people)
        stack.enter_context(_hub(people))
        yield people


def _make_course(people: HubClass) -> None:
    """Give the instructor a copy of the course, for nobody else to enter, with this Python as its .venv."""
    copy_course(people.course, *_PARTS)
    (people.course / ".venv").symlink_to(sys.prefix)
    people.course.chmod(0o700)
    people.home(people.instructor).chmod(0o755)  # so that the course itself has to keep others out
    own = people.home(people.instructor) / ".jupyter"  # in the place of /etc/jupyter, which is this machine's
    own.mkdir()
    (own / "nbgrader_config.py").write_text(_nbgrader_settings(people))
    subprocess.run(["chown", "-R", f"{people.instructor}:", people.home(people.instructor)], check=True)


def _make_environment(people: HubClass) -> None:
    """Install the kit's wheel where students' servers come from, beside the packages that this Python has."""
    place = people.environment
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("\n".join(p for p in sys.path if p.endswith("-packages")))
    (wheel,) = people.home(people.instructor).glob("kit/dist/*.whl")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", packages, wheel]
    subprocess.run(pip, check=True)
    (place / "share").mkdir()
    for name in ("jupyter", "jupyterhub"):
        (place / "share" / name).symlink_to(Path(sys.prefix, "share", name))
    shutil.copytree(Path(sys.prefix, "etc", "jupyter"), place / "etc" / "jupyter")
    shutil.copytree(ROOT / "grading" / "labconfig", place / "etc" / "jupyter" / "labconfig")
    (place / "etc" / "jupyter" / "nbgrader_config.py").write_text(_nbgrader_settings(people))
    for script in entry_points(group="console_scripts"):
        if script.name in _SCRIPTS:
            file = place / "bin" / script.name
            file.write_text(f"#!{place}/bin/python\nfrom {script.module} import {script.attr}\n{script.attr}()\n")
            file.chmod(0o755)


def _nbgrader_settings(people: HubClass) -> str:
    return _with(block_of_readme("c.Exchange.root"), {"/srv/nbgrader/exchange": str(people.exchange)})


@contextmanager
def _hub(people: HubClass) -> Iterator[None]:
    """Run the hub, and end it as an administrator does: it ends the servers of all users."""
    state, ports = people.folder / "state", _free_ports(3)
    state.mkdir(mode=0o700)
    settings = _CONFIGURATION.format(ports=ports, password=PASSWORD, patience=int(deadline_s(60)))
    theirs = _with(
        block_of_readme("pre_spawn_hook"),
        {
            "/home/prof/shardlab": str(people.course),
            '{"prof"}': f'{{"{people.instructor}"}}',
            "environment = {": f'environment = {{"PYTHONPATH": "{_pythonpath(people.course)}", ',
        },
    )
    (state / "jupyterhub_config.py").write_text(settings + theirs)
    variables = {"PATH": _path(people.environment), "LANG": "C.UTF-8", "HOME": str(state)}
    with open(state / "log", "w") as log:
        command = [people.environment / "bin" / "python", "-m", "jupyterhub", "--config=jupyterhub_config.py"]
        hub = psutil.Popen(command, cwd=state, env=variables, stdout=log, stderr=log, start_new_session=True)
    try:
        people.url = f"http://127.0.0.1:{ports[0]}"
        _wait_for(f"{people.url}/hub/health", hub, state / "log")
        yield
    finally:
        family = [hub, *hub.children(recursive=True)]
        hub.send_signal(signal.SIGTERM)
        psutil.wait_procs([hub], timeout=deadline_s(30))
        psutil.wait_procs(people.processes(), timeout=deadline_s(10))
        people.left = [" ".join(p.cmdline()) for p in people.processes()]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _wait_for(url: str, hub: psutil.Popen, log: Path) -> None:
    deadline = time.monotonic() + deadline_s(60)
    while True:
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=5)
            return
        if hub.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the hub did not start:\n{log.read_text()}")
        time.sleep(0.2)


def _remove(user: str, people: HubClass) -> None:
    for process in people.processes():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(people.processes(), timeout=10)
    subprocess.run(["userdel", "--remove", user], check=True, capture_output=True)


def _as(user: str) -> list[str]:
    return [shutil.which("runuser"), "-u", user, "--"]


def _path(environment: Path) -> str:
    return f"{environment}/bin:/usr/local/bin:/usr/bin:/bin"


def _pythonpath(course: Path) -> str:
    return f"{course}/lib:{course}"


def _free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
