"""Without a GPU kernels run in Triton's interpreter, which has to be said before Triton is first imported."""

import os
from collections.abc import Iterator
from importlib.util import find_spec

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
from torch import Tensor

from drawlot.kernels import reference, registry
from drawlot.kernels.drafts import VerifiedRows

if find_spec("triton") is not None and not torch.cuda.is_available():
    from tests.any_order import shuffle_programs
    from tests.checked_memory import check_memory
    from tests.endless_waits import refuse_endless_waits
    from tests.quick_interpreter import (
        call_at_once,
        convert_once,
        fill_at_once,
        look_for_no_overflow,
        prepare_once_a_launch,
        remember_shapes_and_types,
    )

    prepare_once_a_launch()
    remember_shapes_and_types()
    fill_at_once()
    convert_once()
    call_at_once()
    look_for_no_overflow()
    check_memory()
    shuffle_programs()
    refuse_endless_waits()


@pytest.fixture
def margins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """The margins of every verification by the reference."""
    seen: list[Tensor] = []
    verify_rows = reference.verify_rows

    def spy(*args: object, **kwargs: object) -> VerifiedRows:
        verified = verify_rows(*args, **kwargs)  # type: ignore[arg-type]
        assert verified.margin is not None
        seen.append(verified.margin)
        return verified

    monkeypatch.setattr(reference, "verify_rows", spy)
    registry._load.cache_clear()
    yield seen
    registry._load.cache_clear()
