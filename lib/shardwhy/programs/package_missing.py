"""A launcher hides what is installed beside the script: python -I looks only into its own environment."""

import subprocess
import sys

subprocess.run([sys.executable, "-I", "-c", "import a_package_that_only_the_login_node_has"], check=False)
