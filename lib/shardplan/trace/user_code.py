"""A model of the user's own: load it from a file, and say in their words why it can't be built or traced."""

import copy
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

USUAL_NAMES = ("build", "build_model", "make_model", "get_model", "model", "Model")
_MEANINGS = {
    DynamicOutputShapeException: "its result's shape depends on numbers, and a trace has none: give it a fixed shape",
    DataDependentOutputException: "it reads a number out of a tensor, and a trace has none",
    UnsupportedOperatorException: "torch has no shape rule for it: register one with torch.library.register_fake",
}


class CannotTrace(ValueError):
    """The user's model can't be built or traced; the message says where and why."""


def load(source: "str | Callable | nn.Module") -> tuple[nn.Module, Callable | None]:
    """Return the model that a "file.py:name", a function without arguments, or a module stands for, and its loss.

    A function may return (model, loss), where loss(output) is a number.

    Raises CannotTrace.
    """
    target = _named(*_split(source)) if isinstance(source, str) else source
    words = source if isinstance(source, str) else getattr(source, "__qualname__", type(source).__name__)
    built = target if isinstance(target, nn.Module) else _called(target, words)
    model, loss = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(model, nn.Module):
        raise CannotTrace(f"{words} makes {type(model).__name__}, but it must make a torch.nn.Module")
    return model, loss


def without_numbers(module: nn.Module) -> nn.Module:
    """Copy a module without its numbers: parameters and buffers are on the meta device."""
    shared = {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in module.parameters()}
    return copy.deepcopy(module, shared | {id(b): b.detach().to("meta") for b in module.buffers()})


def with_memory(module: nn.Module, device: str) -> nn.Module:
    """Give meta parameters and buffers memory on `device`, in the default dtype. Ties stay.

    Inside a FakeTensorMode they become fake tensors.
    """
    made: dict[int, Tensor] = {}
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, t in held.items():
                if t is None or t.device.type != "meta":
                    continue
                dtype = torch.get_default_dtype() if t.is_floating_point() else t.dtype
                new = torch.empty_strided(t.shape, t.stride(), dtype=dtype, device=device)
                new = nn.Parameter(new, t.requires_grad) if isinstance(t, nn.Parameter) else new
                held[name] = made.setdefault(id(t), new)
    return module


def in_words(error: Exception, source: object) -> str:
    """Describe an error in the user's code: the line of their file, and the operation that can't be traced."""
    files = {str(Path(_split(source)[0]).resolve())} if isinstance(source, str) else set()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not files or f.filename in files]
    own = [f for f in frames if "/torch/" not in f.filename and "/shardplan/" not in f.filename]
    where = f"{Path(own[-1].filename).name}, line {own[-1].lineno}: " if own else "a step with this batch fails: "
    for kind, meaning in _MEANINGS.items():
        if isinstance(error, kind):
            return f"{where}{error.func} can't be traced: {meaning}"
    return f"{where}{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"


def _split(source: str) -> tuple[str, str]:
    path, colon, name = source.rpartition(":")
    return (path, name) if colon and path.endswith(".py") else (source, "")


def _named(path: str, name: str) -> object:
    module = _imported(Path(path).expanduser())
    own = {k: v for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__}
    own |= {k: v for k, v in vars(module).items() if isinstance(v, nn.Module)}
    if name:
        if name in vars(module):
            return vars(module)[name]
        near = get_close_matches(name, own, 1, 0.0)
        raise CannotTrace(f"{path} has no {name!r}" + (f"; did you mean {path}:{near[0]}?" if near else ""))
    usual = [known for known in USUAL_NAMES if known in own]
    models = [
        k for k, v in own.items() if isinstance(v, nn.Module) or (isinstance(v, type) and issubclass(v, nn.Module))
    ]
    if usual or len(models) == 1:
        return own[(usual or models)[0]]
    which = " or ".join(f"{path}:{k}" for k in models or own) or "a function build() that returns a torch.nn.Module"
    raise CannotTrace(f"which model of {path}? Write {which}")


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise CannotTrace(f"there is no file {path}")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SystemExit:
        raise CannotTrace(
            f"{path} ends when it is imported: put what trains under if __name__ == '__main__':"
        ) from None
    return module


def _called(target: object, words: str) -> object:
    if not callable(target):
        raise CannotTrace(f"{words} is {type(target).__name__}, but it must be a torch.nn.Module or make one")
    needed = [
        p.name
        for p in inspect.signature(target).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if needed:
        given = ", ".join(f"{name}=..." for name in needed)
        raise CannotTrace(
            f"{words} needs arguments: {', '.join(needed)}. Write a function without any: "
            f"def build(): return {getattr(target, '__name__', 'it')}({given})"
        )
    return target()
