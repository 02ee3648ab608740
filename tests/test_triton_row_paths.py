"""What a sampler on the GPU backend says of how it drew its rows: compiled where there is a GPU, else interpreted."""

import os

import pytest
import torch

# Read when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from drawlot import InputError, RowStatus, Sampler, SamplingParams
from tests.sampler_pair import DEVICE, rows_of

# The interpreter computes in NumPy, which warns where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

V = 17_000
ROWS = (
    ("greedy", {"temperature": 0.0}),
    ("list", {"top_k": 5}),
    ("tiles", {}),
    ("read again", {"top_p": 0.95}),
    ("no token", {"top_k": 5}),
)
PATHS = [path for path, _ in ROWS]


def a_sampler() -> Sampler:
    sampler = Sampler(len(ROWS), V, device=DEVICE, backend="triton")
    for row, (_, params) in enumerate(ROWS):
        sampler.add_request(row, SamplingParams(seed=row, **params), [1])
    return sampler


def test_each_row_has_its_path() -> None:
    sampler, n = a_sampler(), len(ROWS)
    logits = torch.randn(n + 1, V, generator=torch.Generator().manual_seed(1))
    logits[4, 7] = torch.nan
    out = sampler(logits.to(DEVICE), rows_of([*range(n), -1], [1] * (n + 1)))
    assert sampler.row_paths(n + 1) == [*PATHS, "no token"]
    assert sampler.row_paths(2) == PATHS[:2]
    assert out.status.tolist()[4:] == [RowStatus.NONFINITE, RowStatus.SKIPPED]


def test_rows_that_were_never_drawn_have_no_token() -> None:
    # Fills what is allocated with the largest numbers.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        sampler = a_sampler()
    finally:
        torch.use_deterministic_algorithms(False)
    assert sampler.row_paths(len(ROWS)) == ["no token"] * len(ROWS)


@pytest.mark.parametrize("num_rows", [-1, len(ROWS) + 1])
def test_more_rows_than_there_were_are_refused(num_rows: int) -> None:
    with pytest.raises(InputError, match=f"num_rows: must be in .0, 5., .* got {num_rows}"):
        a_sampler().row_paths(num_rows)


def test_other_backends_do_not_tell() -> None:
    assert Sampler(1, 10, backend="torch").row_paths(1) is None
