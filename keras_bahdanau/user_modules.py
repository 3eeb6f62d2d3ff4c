"""Modules of the user with classes of a model, such as an attention mechanism.

Such a module runs only if the user names it, in an option or a flag. The names of modules in a
saved model or in the folder of a run import nothing.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from keras_bahdanau_runtime.errors import argument_error


def split_class(argument: str, text: str) -> tuple[str, str]:
    """Return the module, or its file, and the class that `MODULE:CLASS` names.

    Args:
        argument: Name of the argument, for the message.
        text: Such as "my_attention:GaussianAttention" or "my_attention.py:GaussianAttention".

    Raises:
        ValueError: The text has another form, or names the script that runs.
    """
    module, _, name = text.rpartition(":")
    if not module or not name.isidentifier():
        raise argument_error(
            argument,
            "be MODULE:CLASS or FILE.py:CLASS, such as my_attention.py:GaussianAttention",
            text,
        )
    if module == "__main__":
        raise argument_error(
            argument,
            "name a class of a module, because other processes cannot import the script that "
            "runs; move the class to a file such as my_attention.py",
            text,
        )
    return module, name


def module_name(module: str) -> str:
    """Return the name of a module that is given by its name or its file.

    Example:

    >>> module_name("layers/my_attention.py"), module_name("my_package.attention")
    ('my_attention', 'my_package.attention')
    """
    return Path(module).stem if module.endswith(".py") else module


def check_module(argument: str, module: str) -> None:
    """Raise a `ValueError` unless a module or its file exists, without importing it.

    Args:
        argument: Name of the argument, for the message.
        module: Name or file.
    """
    is_file = module.endswith(".py")
    name = module_name(module)
    if not all(part.isidentifier() for part in name.split(".")):
        raise argument_error(argument, "be the name of a module, or its file", module)
    if is_file:
        if not Path(module).is_file():
            raise argument_error(
                argument,
                "be the name of an importable module, or its file",
                received=f"{module!r}, which does not exist",
            )
    elif importlib.util.find_spec(name.partition(".")[0]) is None:
        raise argument_error(
            argument,
            "be the name of an importable module, or its file",
            received=f"{module!r}. PYTHONPATH must contain its folder; or write {name}.py with the "
            "path of the file",
        )


def import_user_module(argument: str, module: str) -> ModuleType:
    """Import a module by its name, or from its file, whose folder is added to `sys.path`.

    Args:
        argument: Name of the argument, for the message.
        module: Name or file.

    Raises:
        ValueError: The module does not exist, or another module has the name of the file.
    """
    check_module(argument, module)
    name = module_name(module)
    if not module.endswith(".py"):
        return importlib.import_module(name)
    path = Path(module).resolve()
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # not the first entry: it must not hide other modules
    imported = importlib.import_module(name)
    file = getattr(imported, "__file__", None)
    if file is None or Path(file).resolve() != path:
        raise argument_error(
            argument,
            "be a file that no other module has the name of; rename it",
            received=f"{module!r}, but {name} is {file or 'a module of Python'}",
        )
    return imported
