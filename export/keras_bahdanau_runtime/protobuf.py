"""Messages of protobuf from tables in Python: what a format has, and nothing that it has not.

tables = {"Shape": "1 dim *int64, 2 name string"}
Shape = message_class(pool_of(file_of("shapes", tables)), "shapes.Shape")

A field is `number name type`: `*` before a type for many, `%` for a map from str. A message whose
name has a dot stands inside another. The descriptors stand in pools of their own, so that a library
which brings the same messages can live in the same process.
"""

from collections.abc import Collection, Mapping
from typing import Any

CHOICE = "parameter_choice"  # the oneof of messages whose fields exclude each other


def file_of(
    package: str,
    tables: Mapping[str, str],
    syntax: str = "proto3",
    choices: Collection[str] = (),
) -> Any:
    """The `FileDescriptorProto` of messages; needs protobuf.

    Args:
        package: str, the package of the messages.
        tables: The fields of each message, by its name; an outer message before its inner ones.
        syntax: "proto2", where a field that is absent is told from one of zero, or "proto3".
        choices: Names of the messages whose fields are in one oneof, `CHOICE`.
    """
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax=syntax
    )
    messages: dict[str, Any] = {}
    for name in tables:
        outer, dot, inner = name.rpartition(".")
        inside = messages[outer].nested_type if dot else file.message_type
        messages[name] = inside.add(name=inner)
    for name, message in messages.items():
        if name in choices:
            message.oneof_decl.add(name=CHOICE)
        for text in filter(None, tables[name].split(",")):
            added = _add_field(message, f"{package}.{name}", tables, *text.split())
            if name in choices:
                added.oneof_index = 0
    return file


def pool_of(file: Any) -> Any:
    """The `DescriptorPool` with the messages of a `FileDescriptorProto`, and with nothing else."""
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def message_class(pool: Any, name: str) -> Any:
    """The class of a message.

    Args:
        pool: `DescriptorPool`.
        name: str, with the package.

    Example:

    >>> pool = pool_of(file_of("shapes", {"Shape": "1 dim *int64, 2 name string"}))
    >>> list(message_class(pool, "shapes.Shape")(dim=[2, 3]).dim)
    [2, 3]
    """
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _add_field(
    message: Any, path: str, tables: Mapping[str, str], number: str, name: str, kind: str
) -> Any:
    """Adds a field to a message, whose name with its package is `path`."""
    package = path.partition(".")[0]
    added = message.field.add(name=name, number=int(number))
    added.label = added.LABEL_REPEATED if kind[0] in "*%" else added.LABEL_OPTIONAL
    mapped, kind = kind[0] == "%", kind.lstrip("*%")
    if mapped:  # which is sent as many messages of a key and a value
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, path, tables, "1", "key", "string")
        _add_field(entry, path, tables, "2", "value", kind)
        added.type, added.type_name = added.TYPE_MESSAGE, f".{path}.{entry.name}"
    elif kind in tables:
        added.type, added.type_name = added.TYPE_MESSAGE, f".{package}.{kind}"
    else:
        added.type = getattr(added, f"TYPE_{kind.upper()}")
    return added
