"""RANK_OF_NODE is not set on this node, so --rank gets an empty text."""

import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int)
parser.parse_args(["--rank", os.environ.get("RANK_OF_NODE", "")])
