"""A script for bash is started with a plain sh: it has no pipefail and no ${@:2}."""

import shutil
import subprocess

sh = shutil.which("dash") or "sh"
subprocess.run([sh, "-c", 'MORE="${@:2}"'], check=False)
