"""The mutants of a module: small changes of its syntax tree."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
LONGEST = 70
LEFT_OUT = ("annotation", "returns", "decorator_list")


@dataclass(frozen=True)
class Mutant:
    """One change; `apply` makes it in the tree that it was found in."""

    line: int
    function: str
    before: str
    after: str
    apply: Callable[[], None]

    @property
    def name(self) -> str:
        """What it changes, the same for as long as the function stays as it is."""
        return f"{self.function}: {self.before} → {self.after}"


def mutants(tree: ast.Module) -> list[Mutant]:
    """Every mutant, in the order of the source. Texts, annotations, decorators and logging are left as they are."""
    return sorted(_Finder().of(tree, ""), key=lambda mutant: mutant.line)


class _Finder:
    def of(self, node: ast.AST, function: str) -> Iterator[Mutant]:
        """Those of everything inside a node."""
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list") or (
                isinstance(node, ast.ClassDef) and field != "body"
            ):
                continue
            children = value if isinstance(value, list) else [value]
            for index, child in enumerate(children):
                if not isinstance(child, ast.AST) or _left_out(child):
                    continue
                put = _putter(node, field, index if isinstance(value, list) else None)
                for changed in _changes(child, field):
                    before, after = _texts(node, child, changed, put)
                    yield Mutant(child.lineno, function, before, after, _bound(put, changed))  # type: ignore[attr-defined]
                yield from self.of(child, _qualified(function, child))


def _changes(node: ast.AST, field: str) -> Iterator[ast.AST]:
    """What could stand in the place of a node."""
    match node:
        case ast.Compare(left, ops, comparators):
            for index, operator in enumerate(ops):
                swapped = [*ops[:index], COMPARED[type(operator)](), *ops[index + 1 :]]
                yield ast.Compare(left, swapped, comparators)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.UnaryOp(ast.USub(), operand):
            yield operand
        case ast.BinOp(left, operator, right) if type(operator) in CALCULATED and not _of_text(left, right):
            yield ast.BinOp(left, CALCULATED[type(operator)](), right)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Return(ast.expr() as value) if not _is_none(value):
            yield ast.Return(ast.Constant(None))
        case ast.Raise() | ast.Delete() | ast.AugAssign() | ast.Expr() | ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.Assign(targets) if any(isinstance(one, (ast.Attribute, ast.Subscript)) for one in targets):
            yield ast.Pass()
        case _:
            pass
    if field == "test" and not isinstance(node, (ast.Compare, ast.UnaryOp)):
        yield ast.UnaryOp(ast.Not(), node)  # type: ignore[arg-type]


def _left_out(node: ast.AST) -> bool:
    match node:
        case ast.Expr(ast.Constant()):  # a docstring, or the … of a protocol
            return True
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("log")))) | ast.Expr(ast.Call(ast.Name("assert_never"))):
            return True
        case ast.If(ast.Name("TYPE_CHECKING")) | ast.AnnAssign(_, _, None):
            return True
        case ast.ClassDef(_, bases):
            return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases)
        case ast.Assert():  # for the type checker
            return True
        case ast.BinOp(_, ast.BitOr(), ast.Constant(None)):  # an optional type
            return True
        case _:
            return False


def _putter(node: ast.AST, field: str, index: int | None) -> Callable[[ast.AST], None]:
    def put(changed: ast.AST) -> None:
        if index is None:
            setattr(node, field, changed)
        else:
            getattr(node, field)[index] = changed

    return put


def _bound(put: Callable[[ast.AST], None], changed: ast.AST) -> Callable[[], None]:
    return lambda: put(changed)


def _qualified(function: str, node: ast.AST) -> str:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return f"{function}.{node.name}" if function else node.name
    return function


def _texts(node: ast.AST, child: ast.AST, changed: ast.AST, put: Callable[[ast.AST], None]) -> tuple[str, str]:
    """Both versions; of a constant with what surrounds it, because `0` alone would not say which one."""
    if not isinstance(child, ast.Constant):
        return _text(child), _text(changed)
    before = _text(node)
    put(changed)
    after = _text(node)
    put(child)
    return before, after


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Pass):
        return "(nothing)"
    text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _of_text(*sides: ast.expr) -> bool:
    return any(isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", None), str) for side in sides)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
