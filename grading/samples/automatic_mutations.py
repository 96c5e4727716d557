"""Mutations: the solution with one small change each, made by a program. A judge should see every one.

Two tools were looked at, cosmic-ray 8.7 and mutmut 3. Both change files on disk and run a test command, and they mutate
arithmetic and logic. The mistakes of this course are others: an argument left out, a statement that one rank alone
runs, or only the first step; `sum` for `mean`; another dtype; all but the first of several.
"""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from grading.samples.sample import Sample, read_lab

Mutations = Iterator[tuple[str, ast.AST]]  # in words; what stands there instead

_TURNED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OTHER_NAME = {
    "sum": "mean", "mean": "sum", "SUM": "AVG", "AVG": "SUM", "min": "max", "max": "min", "MAX": "SUM", "any": "all",
    "all": "any", "float32": "bfloat16", "bfloat16": "float16", "float64": "float32", "int64": "int32", "floor": "ceil",
    "ceil": "floor", "append": "remove", "reversed": "list", "sorted": "list",
}  # fmt: skip
_METHODS_ALONE = ("sum", "append")  # the built-in sum has no mean beside it


@dataclass(frozen=True)
class Mutation:
    """A mutated solution cell. `key` names it without a line number: the cell, the statement, what was done.

    Where equal statements have equal mutations, the second is called "(2)".
    """

    cell: str
    key: str
    source: str

    def sample(self, lab: str) -> Sample:
        return Sample(lab, self.key, self.key, cells={self.cell: self.source})


def mutations_of(lab: str) -> list[Mutation]:
    """Return every mutation in the cells that students fill in, in the order of the notebook."""
    cells = [c for c in read_lab("solutions", lab).cells if c.cell_type == "code" and c.metadata.nbgrader.solution]
    on_ranks = any("dist." in c.source for c in cells)
    times, by_source = Counter(), {}
    for made in (m for c in cells for m in _mutations(c.metadata.nbgrader.grade_id, c.source, on_ranks)):
        if made.source not in by_source:  # two ways to one text are one mutation
            times[made.key] += 1
            number = f" ({times[made.key]})" if times[made.key] > 1 else ""
            by_source[made.source] = replace(made, key=made.key + number)
    return list(by_source.values())


def _mutations(cell: str, source: str, on_ranks: bool) -> Iterator[Mutation]:
    tree = ast.parse(source)
    places = list(_places(tree))
    for i, (parent, field, position) in enumerate(places):
        node = _at(parent, field, position)
        for words, new in _made_of(node, on_ranks):
            changed = copy.deepcopy(tree)
            _put(*list(_places(changed))[i], new)
            text = ast.unparse(ast.fix_missing_locations(changed))
            if text != ast.unparse(tree):
                yield Mutation(cell, f"{cell} | {_line(tree, node)} | {words}", text)


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Yield where each node stands: its parent, the field, and the position if the field is a list."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, ast.AST):
                yield parent, field, None
            elif isinstance(value, list):
                yield from ((parent, field, i) for i, child in enumerate(value) if isinstance(child, ast.AST))


def _at(parent: ast.AST, field: str, position: int | None) -> ast.AST:
    value = getattr(parent, field)
    return value if position is None else value[position]


def _put(parent: ast.AST, field: str, position: int | None, new: ast.AST) -> None:
    if position is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[position] = new


def _line(tree: ast.AST, node: ast.AST) -> str:
    """Return the first line of the innermost statement around the node."""
    around = [s for s in ast.walk(tree) if isinstance(s, ast.stmt) and any(child is node for child in ast.walk(s))]
    innermost = min(around, key=lambda s: sum(1 for _ in ast.walk(s)))
    return ast.unparse(innermost).splitlines()[0]


def _made_of(node: ast.AST, on_ranks: bool) -> Mutations:
    if isinstance(node, ast.stmt):
        yield from _of_statement(node, on_ranks)
    for kind, make in _OF_EXPRESSION.items():
        if isinstance(node, kind):
            yield from make(node)


def _of_statement(node: ast.stmt, on_ranks: bool) -> Mutations:
    does = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) or isinstance(node, ast.AugAssign)
    stores = isinstance(node, ast.Assign) and not all(isinstance(t, ast.Name) for t in node.targets)
    if does or stores or isinstance(node, ast.Delete):
        yield "left out", ast.Pass()
        first = ast.parse("if not globals().setdefault('_ran', []):\n    _ran.append(1)").body[0]
        yield "the first time only", ast.If(first.test, [*first.body, node], [])
        if on_ranks:
            rank_0 = ast.parse("__import__('torch').distributed.get_rank() == 0", mode="eval").body
            yield "on rank 0 only", ast.If(rank_0, [node], [])
    if isinstance(node, ast.With):
        yield "without the context", ast.If(ast.Constant(True), node.body, [])
    if isinstance(node, ast.If):
        yield "always", ast.If(ast.Constant(True), node.body, node.orelse)
        yield "never", ast.If(ast.Constant(False), node.body, node.orelse)
    if isinstance(node, ast.For):
        for words, which in (("the first only", "[:1]"), ("all but the first", "[1:]"), ("all but the last", "[:-1]")):
            some = ast.parse(f"list(_){which}", mode="eval").body
            some.value.args = [node.iter]
            yield words, ast.For(node.target, some, node.body, node.orelse)


def _of_compare(node: ast.Compare) -> Mutations:
    for i, op in enumerate(node.ops):
        if other := _TURNED.get(type(op)):
            yield (
                f"{ast.unparse(node)} turned",
                ast.Compare(node.left, [*node.ops[:i], other(), *node.ops[i + 1 :]], node.comparators),
            )


def _of_constant(node: ast.Constant) -> Mutations:
    if isinstance(node.value, bool):
        yield f"{node.value} turned", ast.Constant(not node.value)
    elif isinstance(node.value, int | float):
        new = node.value + 1 if isinstance(node.value, int) else node.value * 2
        yield f"{node.value} becomes {new}", ast.Constant(new)


def _of_operation(node: ast.BinOp) -> Mutations:
    yield f"{ast.unparse(node)} without its first part", node.right
    yield f"{ast.unparse(node)} without its second part", node.left


def _of_call(node: ast.Call) -> Mutations:
    if len(node.args) > 1 and not isinstance(node.args[-1], ast.Starred):
        yield f"{ast.unparse(node.func)} without its last argument", ast.Call(node.func, node.args[:-1], node.keywords)
    for i, keyword in enumerate(node.keywords):
        if keyword.arg:
            yield (
                f"{ast.unparse(node.func)} without {keyword.arg}",
                ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :]),
            )


def _of_logic(node: ast.BoolOp) -> Mutations:
    for i, value in enumerate(node.values):
        rest = node.values[:i] + node.values[i + 1 :]
        yield f"without {ast.unparse(value)}", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _of_sign(node: ast.UnaryOp) -> Mutations:
    yield f"{ast.unparse(node)} turned", node.operand


def _of_choice(node: ast.IfExp) -> Mutations:
    yield f"always {ast.unparse(node.body)}", node.body
    yield f"always {ast.unparse(node.orelse)}", node.orelse


def _of_loop_inside(node: ast.comprehension) -> Mutations:
    for i, condition in enumerate(node.ifs):
        rest = node.ifs[:i] + node.ifs[i + 1 :]
        yield f"also without {ast.unparse(condition)}", ast.comprehension(node.target, node.iter, rest, node.is_async)


def _of_attribute(node: ast.Attribute) -> Mutations:
    if other := _OTHER_NAME.get(node.attr):
        yield f"{node.attr} becomes {other}", ast.Attribute(node.value, other, node.ctx)


def _of_name(node: ast.Name) -> Mutations:
    if (other := _OTHER_NAME.get(node.id)) and node.id not in _METHODS_ALONE:
        yield f"{node.id} becomes {other}", ast.Name(other, node.ctx)


_OF_EXPRESSION: dict[type, Callable[..., Mutations]] = {
    ast.Compare: _of_compare,
    ast.Constant: _of_constant,
    ast.BinOp: _of_operation,
    ast.Call: _of_call,
    ast.BoolOp: _of_logic,
    ast.UnaryOp: _of_sign,
    ast.IfExp: _of_choice,
    ast.comprehension: _of_loop_inside,
    ast.Attribute: _of_attribute,
    ast.Name: _of_name,
}
