"""The table of Hugging Face's settings names what the installed accelerate has, and sections that lessons have."""

import dataclasses
import inspect
import re
from importlib import import_module
from pathlib import Path

import accelerate
import accelerate.utils
import nbformat
import pytest
from accelerate.commands.launch import launch_command_parser
from accelerate.parallelism_config import ParallelismConfig

COURSE = Path(__file__).parents[3] / "course"
PAGE = (COURSE / "from_hugging_face.md").read_text(encoding="utf-8")
TABLES = {title: body for title, _, body in (part.partition("\n") for part in PAGE.split("\n## ")[1:])}
KEYS = {title: re.findall(r"^\| `([^|]+?)` \|", body, re.MULTILINE) for title, body in TABLES.items()}
SECTIONS = re.findall(r"\[(\w+), ([^\]]+)\]\((\w+\.ipynb)\)", PAGE)


def options() -> set[str]:
    return {name.lstrip("-") for action in launch_command_parser()._actions for name in action.option_strings}


def has_field(key: str) -> bool:
    owner, field = key.split(".")
    if owner == "Accelerator":
        return field in inspect.signature(accelerate.Accelerator.__init__).parameters
    found = ParallelismConfig if owner == "ParallelismConfig" else getattr(accelerate.utils, owner)
    return field in {f.name for f in dataclasses.fields(found)}


def test_the_table_of_fsdp_has_all_options_of_accelerate_and_no_others():
    assert set(KEYS["accelerate: FSDP"]) == {name for name in options() if name.startswith("fsdp_")}


@pytest.mark.parametrize("key", KEYS["accelerate: all others"])
def test_accelerate_has_the_field(key):
    assert has_field(key)


def test_a_field_that_is_not_there_would_be_found():
    assert not has_field("DistributedDataParallelKwargs.find_used_parameters")
    assert not has_field("Accelerator.precision")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(torch(?:\.\w+)+)`", PAGE))))
def test_torch_has_the_name(name):
    parent, _, last = name.rpartition(".")
    try:
        import_module(name)
    except ImportError:
        assert hasattr(import_module(parent), last)


@pytest.mark.parametrize(("number", "words", "file"), SECTIONS, ids=[f"{n} {words}" for n, words, _ in SECTIONS])
def test_the_section_is_there(number, words, file):
    cells = nbformat.read(COURSE / file, 4).cells
    headings = re.findall(r"^##+ (.*)$", "\n".join(c.source for c in cells if c.cell_type == "markdown"), re.MULTILINE)
    digits, letter = re.fullmatch(r"(\d+)([ab]?)", number).groups()
    assert file.startswith(f"{int(digits):02d}{letter}_")
    if not (section := re.fullmatch(r"section (\d+)", words)):
        assert any(words in heading for heading in headings)
    else:
        assert any(heading.startswith(f"{section[1]}. ") for heading in headings)


def test_the_default_policy_is_as_the_page_says():
    plugin = accelerate.utils.FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    assert plugin.mixed_precision_policy.param_dtype == plugin.mixed_precision_policy.reduce_dtype
