"""A JupyterLab of our own and a real browser in it: started on a free port, with nothing of the user's, and ended.

All state lives in one folder; the kernel is the Python that runs this.
"""

import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL = "make look needs a Chromium (apt install chromium) and its driver (pip install -e '.[browser]')"
_SETTINGS = {  # keep every cell in the page, ask nothing
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


class MissingBrowser(RuntimeError):
    """What to install."""


def chromium() -> str:
    found = filter(None, map(shutil.which, CHROMIUM_NAMES))
    path = os.environ.get("CHROMIUM") or next(found, None)
    if path is None:
        raise MissingBrowser(f"{INSTALL}: none of {', '.join(CHROMIUM_NAMES)} is on the PATH, and CHROMIUM is not set")
    return path


def check_installed() -> None:
    if importlib.util.find_spec("playwright") is None:
        raise MissingBrowser(f"{INSTALL}: Python finds no playwright")
    chromium()


@contextmanager
def browser() -> Iterator:
    """A headless Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright  # where it is missing, the other tests can be collected

    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # Chromium refuses to start in one as root
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium(), args=sandbox)


@contextmanager
def jupyterlab(home: Path, course: Path | None = None, inside: Sequence[str | Path] = ()) -> Iterator[str]:
    """The URL, token included, of a server of `home / "notebooks"`, or of `course` as users start it.

    `inside`: a command that runs the server, such as a box.
    """
    token = secrets.token_hex(16)
    _write_settings(home)
    bare = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={home / 'notebooks'}"]
    theirs = [Path(sys.executable).with_name("shardlab"), "lab", "--course", course]
    command = [*inside, *(theirs if course else bare)]
    command += ["--no-browser", "--allow-root", "--ServerApp.port=0", f"--IdentityProvider.token={token}"]
    command += ["--LabApp.expose_app_in_browser=True", "--ServerApp.shutdown_no_activity_timeout=900"]
    with open(home / "server.log", "w") as log:
        server = psutil.Popen(command, env=_environment(home), stdout=log, stderr=log, start_new_session=True)
    try:
        yield f"{_address(server, home)}lab?token={token}"
    finally:
        _end(server)


def _write_settings(home: Path) -> None:
    for name, settings in _SETTINGS.items():
        file = home / "settings" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))
    kernel = home / "data" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    (home / "notebooks").mkdir(exist_ok=True)


def _environment(home: Path) -> dict[str, str]:
    places = {"CONFIG_DIR": "config", "DATA_DIR": "data", "RUNTIME_DIR": "runtime"}
    mine = {f"JUPYTER_{name}": home / folder for name, folder in places.items()}
    mine |= {"JUPYTERLAB_SETTINGS_DIR": home / "settings", "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces"}
    return os.environ | {name: str(path) for name, path in mine.items()} | {"IPYTHONDIR": str(home / "ipython")}


def _address(server: psutil.Popen, home: Path, within_s: float = 60) -> str:
    """The server writes it into a file as soon as it listens."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError, ValueError):
            for file in (home / "runtime").glob("jpserver-*.json"):
                return json.loads(file.read_text())["url"]
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start within {within_s:.0f} s:\n{(home / 'server.log').read_text()}")


def _end(server: psutil.Popen) -> None:
    """With its kernels and what they started, which must not outlive it."""
    family = server.children(recursive=True)
    server.terminate()
    with suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
        server.wait(5)
    for process in [server, *family]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs([server, *family], timeout=5)
