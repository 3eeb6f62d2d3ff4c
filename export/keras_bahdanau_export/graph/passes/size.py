"""The size of an axis that only a run tells, as a product."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Size:
    """A number times the sizes of axes of values.

    Attributes:
        factor: A `Fraction`.
        parts: `(value, axis)` pairs, in an order of their own.
    """

    factor: Fraction
    parts: tuple = ()

    @property
    def number(self):
        """The int that it is, or `None`."""
        whole = not self.parts and self.factor.denominator == 1
        return int(self.factor) if whole else None

    def __mul__(self, other):
        parts = sorted((*self.parts, *other.parts), key=lambda part: (id(part[0]), part[1]))
        return Size(self.factor * other.factor, tuple(parts))

    def over(self, other):
        """The quotient, or `None` where it is no product of sizes."""
        left = list(self.parts)
        for part in other.parts:
            if part not in left:
                return None
            left.remove(part)
        return Size(self.factor / other.factor, tuple(left)) if other.factor else None


def number(value):
    """The `Size` of an int."""
    return Size(Fraction(int(value)))


def broadcast(shapes):
    """The sizes of what tensors of these sizes are broadcast to; `None` in them where unknown."""
    if None in shapes:
        return None
    rank, found = max(map(len, shapes)), []
    one = number(1)
    for axis in range(-rank, 0):
        several = {dims[axis] for dims in shapes if len(dims) >= -axis} - {one}
        numbers = {size for size in several if size is not None and size.number is not None}
        if numbers:
            several = numbers  # the others are the same, or 1
        found.append(one if not several else several.pop() if len(several) == 1 else None)
    return found
