"""The index of messages as a page of the course: `python -m shardwhy.page` writes course/messages.md."""

import re
from collections.abc import Mapping
from pathlib import Path

from shardwhy.index import Entry, load

PAGE = Path(__file__).parents[2] / "course" / "messages.md"
_CODE = re.compile(r"(``.+?``|`[^`]+`)")
TOPICS = {  # in the order of a job's life; a topic that is not here comes last
    "launch": "The job does not start",
    "cluster": "Slurm and machines",
    "nccl": "NCCL",
    "ddp": "DDP",
    "fsdp": "FSDP",
    "precision": "Mixed precision",
    "checkpointing": "Activation checkpointing",
    "compile": "torch.compile",
    "data": "Data",
    "hugging_face": "Hugging Face and DeepSpeed",
    "memory": "Memory",
    "hangs": "The job waits and does not end",
    "saving": "Saving and loading",
    "families": "Kinds of messages",
}
INTRODUCTION = """# Error messages

This page lists {count} messages of distributed training: what each one means, what causes it, how to tell the causes
apart, and what to do. Search this page for words of your message. Or let `shardlab why` search: it reads a message or
whole logs, and names the first cause and its rank.

```
.venv/bin/shardlab why train.log      # one file, several files or a folder
.venv/bin/shardlab why                # paste a message or a log, then press Enter and Ctrl-D
cd lib && python -m shardwhy          # the same, if nothing is installed
```

It reads megabytes in a second, needs no torch and no GPU, and sends nothing anywhere. If many ranks write messages,
most of them only follow the first error. Do not begin with the last message or the longest one.

Many messages have a short program that raises them on CPU ranks. Run the program, change it, and see when the message
goes away. [At the end](#messages-of-each-lesson) stand the messages of each lesson.

<!-- This page is written by `python -m shardwhy.page` from lib/shardwhy/symptoms/. Edit the entries there. -->
"""


def page(entries: Mapping[str, Entry]) -> str:
    """Return the page: an introduction, a table of contents by topic, each entry, and the messages of each lesson."""
    found = {entry.topic for entry in entries.values()}
    topics = [*(topic for topic in TOPICS if topic in found), *sorted(found - TOPICS.keys())]
    by_topic = {topic: [entry for entry in entries.values() if entry.topic == topic] for topic in topics}
    parts = [INTRODUCTION.format(count=len(entries)), "## Contents\n"]
    for topic, inside in by_topic.items():
        parts.append(f"**{_title(topic)}**\n")
        parts.append("\n".join(f"- [{_code(_short(entry.message))}](#{entry.id})" for entry in inside) + "\n")
    for topic, inside in by_topic.items():
        parts.append(f"## {_title(topic)}\n")
        parts += [_entry(entry) for entry in inside]
    return "\n".join([*parts, *_by_lesson(entries)])


def anchor_of(lesson: str) -> str:
    """Return the heading under which the page lists a lesson's messages: lesson_13a for 13a_hangs.ipynb."""
    return f"lesson_{lesson.split('_')[0]}"


def _by_lesson(entries: Mapping[str, Entry]) -> list[str]:
    """Return the last chapter: the messages of each lesson, to which the lesson leads."""
    parts = ["## Messages of each lesson\n"]
    for lesson in sorted({entry.lesson for entry in entries.values()}):
        parts += [f"### {anchor_of(lesson)}\n", f"[{lesson.removesuffix('.ipynb')}]({lesson})\n"]
        mine = [entry for entry in entries.values() if entry.lesson == lesson]
        mine.sort(key=lambda entry: entry.section)
        parts.append("\n".join(f'- "{e.section}": [{_code(_short(e.message))}](#{e.id})' for e in mine) + "\n")
    return parts


def _entry(entry: Entry) -> str:
    causes = "\n".join(f"{number}. {_one_line(cause)}" for number, cause in enumerate(entry.causes, 1))
    follows = " It follows another error: look for that one first." if entry.consequence else ""
    if entry.family:
        follows = " The message above is one of many of this kind; your message may have other words."
    if entry.program:
        run = f"**See it:** `python lib/shardwhy/programs/{entry.id}.py` raises it on CPU ranks."
    else:
        run = f"**No program:** {_one_line(entry.gpu_only)}"
    return f"""### {entry.id}

{_code(entry.message)}

{_one_line(entry.means)}{follows}

**Causes**, the most frequent first:

{causes}

**How to tell:** {_one_line(entry.tell)}

**What to do:** {_one_line(entry.do)}

**Lesson:** [{entry.lesson.removesuffix(".ipynb")}]({entry.lesson}), "{entry.section}"

{run}

Source: {_one_line(entry.source)}
"""


def _title(topic: str) -> str:
    return TOPICS.get(topic, topic.replace("_", " ").capitalize())


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _short(text: str) -> str:
    return text if len(text) <= 90 else text[:86] + " ..."


def _one_line(text: str) -> str:
    """Return the text in one line. Outside of code, `$` begins no formula, and `__` no bold words: shells and Python
    have them."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if i % 2 else re.sub(r"[$]|__", _escaped, part) for i, part in enumerate(parts))


def _escaped(found: re.Match) -> str:
    return "".join(f"\\{character}" for character in found[0])


if __name__ == "__main__":
    PAGE.write_text(page(load()), encoding="utf-8")
    print(f"wrote {PAGE}")
