"""Half of a finish's threads leave where nothing follows that is wider than a list, as the compiler sees it."""

import re
from math import prod

import pytest

from tests.test_triton_compiles import SAMPLES
from tests.without_gpu import intermediate

pytest.importorskip("triton")
from drawlot.kernels.triton.workspace import ROOM

EDITS = SAMPLES.replace("logprobs=0", "logprobs=5, repetition_penalty=1.2")


def widest(lines: list[str]) -> int:
    """Numbers of the widest block that is named."""
    shapes = re.findall(r"tensor<([\dx]+)x", "\n".join(lines))
    return max(prod(map(int, shape.split("x"))) for shape in shapes)


def after_leaving(lines: list[str]) -> list[str]:
    """What is done with a list that holds all, from where threads leave, and mostly some more."""
    (start,) = [i for i, line in enumerate(lines) if "leaves, own" in line]
    depth = 0
    for i in range(start, len(lines)):
        depth += lines[i].count("{\n") + lines[i].endswith("{") - lines[i].lstrip().startswith("}")
        if depth == -2:
            return lines[start:i]
    raise AssertionError("no end of the branch")


@pytest.mark.parametrize("script", [SAMPLES, EDITS], ids=["one kind", "edits and columns"])
def test_what_follows_is_no_wider_than_a_list(script: str) -> None:
    forms = intermediate(script, "finish_kernel").split("tt.func public @finish_kernel")[1:]
    assert len(forms) == (3 if script is SAMPLES else 5)
    for form in forms:
        lines = form.splitlines()
        follows = after_leaving(lines)
        assert re.search(rf"leaves, own.*%c{ROOM}_i32", follows[0])
        assert "tt.store" in "\n".join(follows)
        assert widest(follows) == ROOM
        assert widest(lines) > ROOM
        # Who edits may ask for a rank that all threads count afterwards.
        before, after = lines[lines.index(follows[0]) - 1], follows[1]
        assert (before.lstrip().startswith("scf.if"), after.lstrip().startswith("}")) == (2 * (script is EDITS,))
