"""What must hold in memory, checked whether or not Python runs with `-O`, which takes `assert` out."""

from __future__ import annotations


class IntegrityError(Exception):
    """What is in memory contradicts itself: nothing must be answered from it any more."""


def require(holds: bool, fault: str) -> None:
    """Raise `IntegrityError(fault)` unless it holds."""
    if not holds:
        raise IntegrityError(fault)
