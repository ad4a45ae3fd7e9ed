"""The rules that Python source must keep, as pure functions from text to complaints.

Each complaint is "line: what is wrong". The tests run them over the repository, and over a small
counter-example each, so that no rule is unable to fail.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "torchrelay"

MOST_FILE_LINES = 400
MOST_BODY_LINES = 40
MOST_CLASS_LINES = 150
MOST_PUBLIC_METHODS = 10
MOST_NESTING = 3

_WORDS = ("manager", "trainer", "handler", "helper", "helpers", "util", "utils", "common", "misc")
_NESTING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*folders: str) -> list[Path]:
    """Every Python file under these folders of the repository, sorted."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def file_size(text: str) -> list[str]:
    """A file holds one idea."""
    lines = len(text.splitlines())
    return [f"1: {lines} lines, at most {MOST_FILE_LINES}"] if lines > MOST_FILE_LINES else []


def function_sizes(text: str) -> list[str]:
    """Body without docstring, signature and decorators."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _Function):
            lines = _body_lines(node)
            if lines > MOST_BODY_LINES:
                found.append(
                    f"{node.lineno}: {node.name} has {lines} lines of body, at most {MOST_BODY_LINES}"
                )
    return found


def class_sizes(text: str) -> list[str]:
    """Lines of the whole class, and its public methods."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        public = [n.name for n in node.body if isinstance(n, _Function) and not n.name.startswith("_")]
        if lines > MOST_CLASS_LINES:
            found.append(f"{node.lineno}: class {node.name} has {lines} lines, at most {MOST_CLASS_LINES}")
        if len(public) > MOST_PUBLIC_METHODS:
            found.append(f"{node.lineno}: class {node.name} has {len(public)} public methods")
    return found


def nesting(text: str) -> list[str]:
    """Blocks within blocks; the branches of one `if … elif … else` are beside each other."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _Function):
            depth = _depth(node.body, within_elif=False)
            if depth > MOST_NESTING:
                found.append(f"{node.lineno}: {node.name} nests {depth} deep, at most {MOST_NESTING}")
    return found


def banned_names(text: str, module: str) -> list[str]:
    """Names that say nothing about what a thing is."""
    found = []
    if set(module.split("_")) & set(_WORDS):
        found.append(f"1: a module is not called {module}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            words = [word.lower() for word in re.findall(r"[A-Z][a-z0-9]*", node.name)]
            if set(words) & set(_WORDS) or words[:1] == ["base"]:
                found.append(f"{node.lineno}: a class is not called {node.name}")
        elif isinstance(node, _Function) and re.match(r"_?(do|process)_", node.name):
            found.append(f"{node.lineno}: a function is not called {node.name}")
    return found


def prints(text: str) -> list[str]:
    """Calls of `print`."""
    return [
        f"{node.lineno}: print"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def mutable_globals(text: str) -> list[str]:
    """Lists, dicts and sets at module level that are not constants, and `global`."""
    tree = ast.parse(text)
    found = [f"{node.lineno}: global" for node in ast.walk(tree) if isinstance(node, ast.Global)]
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and _makes_container(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found += [f"{node.lineno}: {name}" for name in names if not _is_constant(name)]
    return found


def _makes_container(value: ast.expr | None) -> bool:
    literals = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id in ("list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter")
    return isinstance(value, literals)


def _is_constant(name: str) -> bool:
    return name.isupper() or name == "__all__"


def _body_lines(function: _Function) -> int:
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _depth(body: list[ast.stmt], *, within_elif: bool) -> int:
    return max((_statement_depth(node, is_elif=within_elif) for node in body), default=0)


def _statement_depth(node: ast.stmt, *, is_elif: bool) -> int:
    if isinstance(node, _Function | ast.ClassDef) or not isinstance(node, _NESTING):
        return 0
    inner = max(_depth(block, within_elif=elif_) for block, elif_ in _blocks(node))
    return max(inner, 0) if is_elif else 1 + inner


def _blocks(node: ast.stmt) -> Iterator[tuple[list[ast.stmt], bool]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, [])
        is_elif = name == "orelse" and isinstance(node, ast.If) and len(block) == 1
        yield block, is_elif and isinstance(block[0], ast.If)
    for case in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
        yield case.body, False
