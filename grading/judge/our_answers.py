"""Our own solutions of drawn problems, by name. A judge knows no other way to them."""

import importlib
import json
from typing import Any


class OurAnswers:
    """The functions of a lab's module in `grading.references`; `module` None: there are none."""

    def __init__(self, module: str | None) -> None:
        self._module = module
        self._known: dict[str, Any] = {}

    def __call__(self, name: str, *arguments) -> Any:
        """Return what the function `name` returns for these arguments. Both are what JSON can hold."""
        key = json.dumps([name, *arguments])
        if key not in self._known:
            self._known[key] = getattr(importlib.import_module(self._module), name)(*arguments)
        return self._known[key]
