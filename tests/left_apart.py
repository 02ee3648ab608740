"""Threads of a warp that a compiled kernel leaves apart where it comes to a barrier.

ptxas of Triton 3.6 turns a store by some threads, at the end of a branch, into a jump around it, and does not bring the
threads together again. A barrier counts the warp when the first of them comes: these go on, the others come too late,
and registers that a warp shares have changed meanwhile. Seen as addresses of nowhere in 31 threads of a warp.
"""

import re
from typing import NamedTuple

_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,6})\*/\s+(?:@(!?U?P\w+)\s+)?(.*?) ;")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_ENDS = ("BRA", "EXIT", "BSYNC", "BSSY", "BAR", "RET")
_FAR = 8
"""Instructions that are jumped over, at most"""


class _Instruction(NamedTuple):
    place: str
    predicate: str | None
    code: str

    @property
    def target(self) -> str | None:
        found = _TARGET.search(self.code) if self.code.startswith("BRA") else None
        return found[1] if found else None


def left_apart(sass: str) -> list[str]:
    """Places of jumps around stores of which threads may come to a barrier without the others; sass: of one kernel."""
    instructions, labels = list[_Instruction](), dict[str, int]()
    for line in sass.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _INSTRUCTION.match(line):
            instructions.append(_Instruction(*found.groups()))
    return [
        each.place
        for i, each in enumerate(instructions)
        if each.target
        and (each.predicate or "U").lstrip("!")[0] != "U"
        and _jumps_around_stores(instructions, labels, i)
        and _comes_to_barrier(instructions, labels, labels[each.target])
    ]


def _jumps_around_stores(instructions: list[_Instruction], labels: dict[str, int], start: int) -> bool:
    target = instructions[start].target
    assert target is not None
    stores = False
    for i in range(start + 1, min(start + 1 + _FAR, len(instructions))):
        each = instructions[i]
        if labels[target] == i or (each.target == target and each.predicate is None):
            return stores
        if each.code.startswith(_ENDS):
            return False
        # One that says itself which threads store is jumped over by all of them or by none.
        stores = stores or (each.code.startswith("STG") and each.predicate is None)
    return False


def _comes_to_barrier(instructions: list[_Instruction], labels: dict[str, int], start: int) -> bool:
    """Before the threads are together again."""
    seen, starts = set[int](), [start]
    while starts:
        i = starts.pop()
        while i < len(instructions) and i not in seen:
            seen.add(i)
            each = instructions[i]
            # Whoever called the function may come to a barrier next.
            if each.code.startswith(("BAR", "RET")):
                return True
            if each.code.startswith(("WARPSYNC", "BSYNC")) or (each.code.startswith("EXIT") and not each.predicate):
                break
            if each.target and each.predicate is None:
                i = labels[each.target]
                continue
            if each.target:
                starts.append(labels[each.target])
            i += 1
    return False
