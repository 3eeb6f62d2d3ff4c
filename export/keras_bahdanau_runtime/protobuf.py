"""Protobuf messages defined by tables in Python.

tables = {"Shape": "1 dim *int64, 2 name string"}
Shape = message_class(create_pool(build_file("shapes", tables)), "shapes.Shape")

A field is `number name type`. A type with `*` is repeated, one with `%` is a map from str. A dot in
the name of a message nests it in another one. Each pool is separate from protobuf's default pool,
so that libraries with the same messages can be imported in the same process.
"""

from collections.abc import Collection, Mapping
from typing import Any

ONEOF = "parameter_choice"  # name of the oneof in `oneofs` messages


def build_file(
    package: str,
    tables: Mapping[str, str],
    syntax: str = "proto3",
    oneofs: Collection[str] = (),
) -> Any:
    """Return a `FileDescriptorProto` with messages; requires protobuf.

    Args:
        package: str, the package of the messages.
        tables: Fields by message name; an outer message comes before its nested ones.
        syntax: "proto3", or "proto2", where a missing field differs from one of value zero.
        oneofs: Names of messages whose fields are all in one oneof, `ONEOF`.
    """
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax=syntax
    )
    messages: dict[str, Any] = {}
    for name in tables:
        parent, dot, short_name = name.rpartition(".")
        siblings = messages[parent].nested_type if dot else file.message_type
        messages[name] = siblings.add(name=short_name)
    for name, message in messages.items():
        if name in oneofs:
            message.oneof_decl.add(name=ONEOF)
        for field in filter(None, tables[name].split(",")):
            descriptor = _add_field(message, f"{package}.{name}", tables, *field.split())
            if name in oneofs:
                descriptor.oneof_index = 0
    return file


def create_pool(file: Any) -> Any:
    """Return a `DescriptorPool` with only the messages of a `FileDescriptorProto`."""
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def message_class(pool: Any, name: str) -> Any:
    """Return the class of a message.

    Args:
        pool: `DescriptorPool`.
        name: str, with the package.

    Example:

    >>> pool = create_pool(build_file("shapes", {"Shape": "1 dim *int64, 2 name string"}))
    >>> list(message_class(pool, "shapes.Shape")(dim=[2, 3]).dim)
    [2, 3]
    """
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _add_field(
    message: Any, path: str, tables: Mapping[str, str], number: str, name: str, type: str
) -> Any:
    """Add a field to a message, whose name with its package is `path`; return its descriptor."""
    package = path.partition(".")[0]
    descriptor = message.field.add(name=name, number=int(number))
    is_repeated, is_map, type = type[0] in "*%", type[0] == "%", type.lstrip("*%")
    descriptor.label = descriptor.LABEL_REPEATED if is_repeated else descriptor.LABEL_OPTIONAL
    if is_map:  # protobuf encodes a map as repeated messages of key and value
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, path, tables, "1", "key", "string")
        _add_field(entry, path, tables, "2", "value", type)
        descriptor.type, descriptor.type_name = descriptor.TYPE_MESSAGE, f".{path}.{entry.name}"
    elif type in tables:
        descriptor.type, descriptor.type_name = descriptor.TYPE_MESSAGE, f".{package}.{type}"
    else:
        descriptor.type = getattr(descriptor, f"TYPE_{type.upper()}")
    return descriptor
