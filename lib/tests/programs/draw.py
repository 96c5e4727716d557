"""The program of a seed: the blocks of a model, an optimizer, and what is done with them."""

import random
from dataclasses import dataclass, replace

from programs.models import PACK, BlockSpec

TRAIN = ("train", 1, None, "", False)


@dataclass(frozen=True)
class Program:
    seed: int
    specs: tuple[BlockSpec, ...]
    tied: bool = False
    optimizer: str = "sgd"
    output: str = "tensor"  # the form in which the whole model returns it
    actions: tuple[tuple, ...] = ()  # the name of a method of Run, and its arguments

    @property
    def sparse(self) -> bool:
        """Whether a gradient is sparse, which every engine refuses."""
        return any(spec.sparse for spec in self.specs)


def draw(seed: int) -> Program:
    """Return the program of this seed."""
    r = random.Random(seed)
    specs = tuple(_block(r) for _ in range(r.choice((1, 2, 3))))
    tied = r.random() < 0.15
    if r.random() < 0.03:  # every engine refuses it by its name
        return Program(seed, (*specs[:-1], replace(specs[-1], sparse=True)), r.random() < 0.7, actions=(TRAIN,))
    actions = [action for _ in range(r.randint(2, 6)) for action in _episode(r, specs)]
    actions = _without_untrainable_losses(actions, specs)
    last = (TRAIN, ("evaluate", "grad"))[: r.choice((1, 2))]  # then a module may keep a tensor without a backward
    optimizer = r.choice(("sgd", "adamw"))
    output = r.choice([*PACK, "closure", "closure"]) if r.random() < 0.3 else "tensor"
    if output == "closure":  # then no engine sees any output
        hidden = [spec if spec.checkpoint == "whole" else replace(spec, output=output) for spec in specs]
        specs = tuple(hidden)
    return Program(seed, specs, tied, optimizer, output, (*actions, *last))


def _block(r: random.Random) -> BlockSpec:
    output = r.choice(list(PACK)) if r.random() < 0.5 else "tensor"
    where = r.choice(("whole", "inside")) if r.random() < 0.2 else ""
    keeps = r.choice(("on the way", "beside", "unread")) if r.random() < 0.25 else ""
    return BlockSpec(
        output="tensor" if where == "whole" else output,
        keeps="" if where == "whole" else keeps,  # a checkpointed block keeps a tensor of another graph
        twice=r.random() < 0.2,
        checkpoint=where,
        rrelu=r.random() < 0.15,
        frozen=r.random() < 0.1,
        mark=r.random() < 0.1,
        in_place=r.random() < 0.15,
        around=r.random() < 0.06,
    )


def _episode(r: random.Random, specs: tuple[BlockSpec, ...]) -> tuple[tuple, ...]:
    """Return one action or a few that belong together."""
    if r.random() < 0.6:
        return (_train(r, len(specs)),)
    frozen = [i for i, spec in enumerate(specs) if spec.frozen]
    mode = r.choice(("no_grad", "inference"))
    checkpoint = ("checkpoint", r.choice(("", "", "a number", "half a step")), mode)
    episodes = [(("evaluate", mode),), (("evaluate", "grad"),), (("saliency",),), (("broken forward",),)] * 2
    episodes += [(("copy",),), (checkpoint,), (("full state", mode),), (("another model",),)] * 2
    episodes += [(("train", 1, None, "auxiliary alone", False),), (("learning rate", r.choice((0.3, 0.05))),)]
    episodes += [(("freeze", r.randrange(len(specs))),), (("average",), TRAIN, checkpoint, TRAIN, ("average",))]
    episodes += [(("thaw", r.choice(frozen)),)] * 4 if frozen else []
    episodes += [(("compile",), TRAIN, checkpoint)] if r.random() < 0.3 else []  # it takes a second
    return r.choice(episodes)


def _without_untrainable_losses(actions: list[tuple], specs: tuple[BlockSpec, ...]) -> list[tuple]:
    """Leave out losses of auxiliary terms alone once all blocks that have one are frozen: no process can train then.

    A block that was thawed again counts as frozen. A program loses an action by this that it might have kept.
    """
    have_one = {i for i, spec in enumerate(specs) if spec.keeps in ("on the way", "beside")}
    kept, frozen = [], set()
    for action in actions:
        frozen |= {action[1]} if action[0] == "freeze" else set()
        if "auxiliary alone" not in action or not have_one or not have_one <= frozen:
            kept.append(action)
    return kept


def _train(r: random.Random, n_blocks: int) -> tuple:
    skipped = r.randrange(n_blocks) if n_blocks > 1 and r.random() < 0.04 else None
    extra = r.choice(("penalty", "saliency", "twice", "two forwards")) if r.random() < 0.25 else ""
    return ("train", r.choice((1, 1, 2, 3)), skipped, extra, r.random() < 0.2)
