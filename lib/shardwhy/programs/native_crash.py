"""A process dies in C code, and faulthandler says where."""

import faulthandler

faulthandler.enable()
faulthandler._sigsegv()
