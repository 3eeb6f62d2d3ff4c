"""Undocumented names of uvicorn that the service uses are in one table, and exist."""

import ast
import asyncio
import inspect

import pytest

from keras_bahdanau_runtime.service import connection
from keras_bahdanau_runtime.service.connection import INTERNALS


@pytest.mark.parametrize("kind", INTERNALS, ids=lambda kind: kind.__name__)
def test_the_installed_version_has_the_names(kind):
    functions = [each for each in vars(kind).values() if inspect.isfunction(each)]
    assigned = {name for function in functions for name in function.__code__.co_names}
    assert INTERNALS[kind] <= {*dir(kind), *assigned}


@pytest.mark.parametrize("kind", [connection.Connection, connection.Server])
def test_the_table_has_all_names_that_a_subclass_uses(kind):
    used, own = set(), {"__init__"}
    for node in ast.walk(ast.parse(inspect.getsource(kind))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "super()"):
            (own if isinstance(node.ctx, ast.Store) else used).add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own.add(node.name)
    [base] = kind.__bases__
    overridden = own & {*dir(base)} - {*dir(asyncio.Protocol)}
    assert INTERNALS[base] == (used - own - {*dir(asyncio.Protocol)}) | overridden
