"""A job's script calls a program that this machine does not have."""

import subprocess

subprocess.run(["bash", "-c", "a_compiler_of_the_login_node --version"], check=False)
