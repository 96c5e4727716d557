"""Wherever ours starts torchrun on one machine, it gives the address.

Else torchrun asks for the machine's own name, and where that leads to no address (a laptop in a strange network, a
container) it waits for minutes, and starts no rank.
"""

import re

import pytest

from shardcourse.repository import ROOT

FOR_SEVERAL = {"rendezvous_timeout.py", "rendezvous_connection.py"}  # they wait for another node, and end by themselves
STARTS = re.compile(r'\\?"torch\.distributed\.run\\?"')
FILES = [
    *ROOT.glob("course/*.ipynb"),
    *(file for file in ROOT.glob("lib/shard*/**/*.py") if file.name not in FOR_SEVERAL),
]


@pytest.mark.parametrize(
    "file", [file for file in FILES if STARTS.search(file.read_text())], ids=lambda file: file.stem
)
def test_the_address_is_given(file):
    text = file.read_text()
    assert len(STARTS.findall(text)) <= text.count("--local-addr=127.0.0.1")
