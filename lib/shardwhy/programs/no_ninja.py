"""An extension is compiled when it is used, and no folder of PATH has the program ninja."""

import os

from torch.utils.cpp_extension import load_inline

os.environ["PATH"] = ""
load_inline("twice", "int twice(int x) { return 2 * x; }", functions="twice")
