"""Pickles as plain values, in bounded time and memory.

Nothing that a pickle names is imported or called: the reader of a file chooses a value for each
name. Sizes that a file only declares allocate nothing, so a small pickle needs little memory.
"""

import pickletools

# Limits of a pickle. Two vocabularies of a million pieces have as many operations.
MAX_BYTES = 2**26
_MAX_OPERATIONS = 2**22
# Keys of other types may take exponential time to hash, such as nested tuples.
_KEY_TYPES = (str, int, float, bool, type(None))


class UnpicklingError(ValueError):
    """A pickle is incomplete, too large, or uses other operations than PyTorch's files do."""


class Unread:
    """A value that no importer reads, such as an array of NumPy."""


UNREAD = Unread()


class Namespace(dict):
    """The attributes of an `argparse.Namespace` by name."""


def unpickle(file, find_global, find_persistent):
    """Read one pickle of the operations that `torch.load(weights_only=True)` accepts.

    Args:
        file: Binary file object at the start of the pickle, of at most `MAX_BYTES`. It is read up
            to the end of the pickle.
        find_global: Function of the name of a class or function, such as
            "collections.OrderedDict". It returns a function that makes a plain value from
            arguments, or a value that cannot be called.
        find_persistent: Function of a persistent id, which returns a value.

    Returns:
        The value, of dicts, lists, tuples, numbers, texts and what the two functions return.

    Raises:
        UnpicklingError: If it is not such a pickle.
    """
    machine = _Machine(find_global, find_persistent)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            if count == _MAX_OPERATIONS:
                raise UnpicklingError(f"more than {_MAX_OPERATIONS} operations")
            if opcode.name in _VALUES:
                machine.stack.append(argument)
            elif opcode.name in _CONSTANTS:
                machine.stack.append(_CONSTANTS[opcode.name]())
            elif opcode.name in _OPERATIONS:
                _OPERATIONS[opcode.name](machine, argument)
            elif opcode.name == "STOP":
                return machine.stack.pop()
            elif opcode.name != "PROTO":
                raise UnpicklingError(f"the operation {opcode.name}")
    except IndexError as error:
        raise UnpicklingError("an operation without its values") from error
    except ValueError as error:  # of genops, for incomplete operations
        raise UnpicklingError(" ".join(str(error).split())) from error
    raise UnpicklingError("no end")


class _Machine:
    """Stack and memo of a pickle, and the operations that change them."""

    def __init__(self, find_global, find_persistent):
        self.stack = []
        self._marked = []  # the stacks below each mark
        self._memo = {}
        self._find_global, self._find_persistent = find_global, find_persistent

    def push_global(self, name):
        self.stack.append(self._find_global(name.replace(" ", ".")))

    def push_persistent(self, _):
        self.stack.append(self._find_persistent(self.stack.pop()))

    def mark(self, _):
        self._marked.append(self.stack)
        self.stack = []

    def _pop_to_mark(self):
        items = self.stack
        self.stack = self._marked.pop()
        return items

    def get(self, index):
        if index not in self._memo:
            raise UnpicklingError(f"no value {index}")
        self.stack.append(self._memo[index])

    def put(self, index):
        self._memo[index] = self.stack[-1]

    def make_tuple(self, _):
        items = self._pop_to_mark()
        self.stack.append(tuple(items))

    def make_short_tuple(self, size):
        items = [self.stack.pop() for _ in range(size)]
        self.stack.append(tuple(reversed(items)))

    def append(self, _):
        self._extend([self.stack.pop()])

    def append_all(self, _):
        self._extend(self._pop_to_mark())

    def _extend(self, items):
        target = self.stack[-1]
        if type(target) is list:
            target.extend(items)
        elif target is not UNREAD:
            raise UnpicklingError("items of another value than a list")

    def set_item(self, _):
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def set_items(self, _):
        self._update(self._pop_to_mark())

    def _update(self, items):
        target = self.stack[-1]
        if target is UNREAD:
            return
        if type(target) is not dict or len(items) % 2:
            raise UnpicklingError("items of another value than a dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in _KEY_TYPES:
                raise UnpicklingError(f"a key of type {type(key).__name__}")
            target[key] = value

    def call(self, _):
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(arguments, tuple) or not callable(function):
            raise UnpicklingError("a call of another value than a function")
        self.stack.append(function(*arguments))

    def set_state(self, _):
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Namespace):
            if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
                raise UnpicklingError("a Namespace without attributes")
            target.update(state)


_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING"}
_CONSTANTS = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": lambda: UNREAD,
}
_OPERATIONS = {
    "GLOBAL": _Machine.push_global,
    "BINPERSID": _Machine.push_persistent,
    "MARK": _Machine.mark,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "TUPLE": _Machine.make_tuple,
    "TUPLE1": lambda machine, _: machine.make_short_tuple(1),
    "TUPLE2": lambda machine, _: machine.make_short_tuple(2),
    "TUPLE3": lambda machine, _: machine.make_short_tuple(3),
    "APPEND": _Machine.append,
    "APPENDS": _Machine.append_all,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "BUILD": _Machine.set_state,
}
