"""An index of error messages: from the words of a message, or a log, to its first cause, an explanation and a program.

It needs the standard library only: no torch, no GPU. It sends nothing anywhere.

    python -m shardwhy train.log        # or: shardlab why train.log
    python -m shardwhy < message.txt

Read in this order:

    index         `Entry`, and how symptoms/TOPIC.toml is read
    symptoms/     the entries; those in families.toml are for many messages of one kind
    programs/     short programs that raise the messages on CPU ranks: `python lib/shardwhy/programs/ID.py`
    literals      texts that every match of a pattern contains
    logs          a message, files or folders -> lines with rank and time
    first_cause   which entry is the first cause, and on which rank
    waits         who waits for whom, from flight records or py-spy's dumps
    around        the words around a line: its traceback, and the lines near it
    answer        the answer in at most ten lines
    page          the index as course/messages.md
"""
