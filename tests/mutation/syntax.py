"""Find a piece of code by its function and its syntax tree, and replace it."""

import ast
import textwrap

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def scopes(node, name=""):
    """Yield the qualified name of each function and class below a node, and its node."""
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, FUNCTIONS):
            inner = f"{name}.{child.name}" if name else child.name
            yield inner, child
        yield from scopes(child, inner)


def replacements(scope, old, new):
    """Return one function per place of `old` in `scope`, which replaces it by `new`."""
    old, new = (ast.parse(textwrap.dedent(code)).body for code in (old, new))
    is_expression = all(len(body) == 1 and isinstance(body[0], ast.Expr) for body in (old, new))
    if is_expression:
        old, new = old[0].value, new[0].value
    expected = ast.dump(old) if is_expression else [ast.dump(node) for node in old]
    matches = []
    for node in ast.walk(scope):
        for field, value in ast.iter_fields(node):
            if is_expression:
                values = value if isinstance(value, list) else [value]
                for index, item in enumerate(values):
                    if isinstance(item, ast.AST) and ast.dump(item) == expected:
                        matches.append((node, field, index if isinstance(value, list) else None, 1))
            elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                dumps = [ast.dump(item) for item in value]
                for index in range(len(value) - len(old) + 1):
                    if dumps[index : index + len(old)] == expected:
                        matches.append((node, field, index, len(old)))

    def replace(node, field, index, length):
        if index is None:
            setattr(node, field, new)
        else:
            body = getattr(node, field)
            body[index : index + length] = [new] if is_expression else new
            if not body and isinstance(old, list):
                body.append(ast.Pass())  # a block without its only statement

    return [lambda place=place: replace(*place) for place in matches]


def mutated(mutation, root):
    """Return the path and the source code of the module that a bug changes.

    Raises:
        ValueError: The function does not exist, or does not have `old` exactly once.
    """
    module, _, function = mutation.code.partition(":")
    package = module.partition(".")[0]
    parent = root if package == "keras_bahdanau" else root / "export"
    places, functions = [], 0
    for path in sorted((parent / package).rglob("*.py")):
        name = ".".join(path.relative_to(parent).with_suffix("").parts).removesuffix(".__init__")
        source = path.read_text("utf-8")
        if f"{name}.".startswith(f"{module}.") and function.rpartition(".")[2] in source:
            tree = ast.parse(source)
            matches = [node for at, node in [("", tree), *scopes(tree)] if at == function]
            functions += len(matches)
            for node in matches:
                places += [(path, tree, r) for r in replacements(node, mutation.old, mutation.new)]
    if len(places) != 1:
        raise ValueError(
            f"Mutation {mutation.name}: `old` must occur once in {mutation.code}. "
            f"Received: {len(places)} places in {functions} functions of this name."
        )
    path, tree, replace = places[0]
    replace()
    return path, ast.unparse(ast.fix_missing_locations(tree)) + "\n"
