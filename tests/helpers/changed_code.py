"""Put a changed module into a process that has imported it already.

Importing the package and reading the tests takes longer than most tests. A change inside a function
needs neither: the functions that are there get the code of the changed file. A change of what runs
during the import, such as a constant or a default, has to be imported.
"""

import ast
import gc
import inspect
import os
from collections.abc import Iterator, Mapping
from functools import cache
from types import CodeType, FunctionType

AT_ONCE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # run where they are written
Place = tuple[str, int]  # the qualified name of a function, and its first line


def runs_at_import(before: str, after: str) -> bool:
    """Return whether a change of a module's text is one of what runs when it is imported."""
    return _outline(_compiled(before)) != _outline(_compiled(after))


def change_functions(sources: Mapping[str, str | ast.Module]) -> int:
    """Give the functions of modules the code of their changed sources; return how many differ.

    sources: by path of the module.
    """
    codes = {
        _real(path): dict(_functions(_compiled(source, path))) for path, source in sources.items()
    }
    gc.unfreeze()
    num_changed = 0
    for function in gc.get_objects():
        if type(function) is not FunctionType:
            continue
        now = function.__code__
        of_module = codes.get(_real(now.co_filename), {})
        code = of_module.get((now.co_qualname, now.co_firstlineno))
        if code is not None and not _alike(now, code):
            function.__code__ = code
            num_changed += 1
    return num_changed


def _compiled(source: str | ast.Module, path: str = "module") -> CodeType:
    return compile(source, path, "exec", dont_inherit=True)


@cache
def _real(path: str) -> str:
    return os.path.realpath(path)


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_name not in AT_ONCE


def _functions(code: CodeType) -> Iterator[tuple[Place, CodeType]]:
    """Yield all functions in a piece of code, also those that others define."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if _is_function(constant):
                yield (constant.co_qualname, constant.co_firstlineno), constant
            yield from _functions(constant)


def _outline(code: CodeType) -> tuple[object, ...]:
    """Return what a module or a class does when it is imported, without what functions do."""
    constants = [
        (constant.co_qualname if _is_function(constant) else _outline(constant))
        if isinstance(constant, CodeType)
        else (type(constant), repr(constant))
        for constant in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, tuple(constants)


def _alike(a: CodeType, b: CodeType) -> bool:
    """Return whether two functions do the same."""
    if (a.co_code, a.co_names, a.co_varnames) != (b.co_code, b.co_names, b.co_varnames):
        return False
    pairs = zip(a.co_consts, b.co_consts, strict=False)
    return len(a.co_consts) == len(b.co_consts) and all(
        _alike(x, y)
        if isinstance(x, CodeType) and isinstance(y, CodeType)
        else (type(x), repr(x)) == (type(y), repr(y))
        for x, y in pairs
    )
