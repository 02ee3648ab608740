"""What a backend that keeps requests in tables of its own is told of them: plain numbers, already checked."""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor, device

from drawlot.kernels.inputs import RowParams, SampledRows
from drawlot.outputs import LogitsRows


class RequestEdits(NamedTuple):
    """What a request edits."""

    allowed: Sequence[int] | None
    """Only these ids may be drawn; None: all"""
    masked: Sequence[int]
    """These may not"""
    stop_ids: Sequence[int]
    """These may not before `first_stop_position`"""
    first_stop_position: int
    bias: Mapping[int, float]
    repetition: float
    frequency: float
    presence: float
    prompt: Sequence[int]
    """Seen by the repetition penalty"""
    output: Sequence[int]
    """Seen by penalties and bad words"""
    bad_words: Sequence[Sequence[int]]
    """Of two ids or more: the last may not follow the others"""
    looks_back: bool
    """Tokens that are drawn change what is drawn next"""


class Request(NamedTuple):
    """The numbers of one request."""

    temperature: float
    top_p: float
    min_p: float
    top_k: int
    seed: int
    choice: int
    num_top: int | None
    """Top tokens to give logprobs of; None: no logprobs"""
    logprob_token_ids: Sequence[int]
    """Ids to give logprobs of instead"""
    edits: RequestEdits | None


class StepSampler(Protocol):
    """Draws for requests that it knows by their rows; nothing waits for the device."""

    def __init__(
        self, max_num_reqs: int, vocab_size: int, device: device, logprobs_mode: str, *, wide: bool
    ) -> None: ...

    @property
    def capture_key(self) -> Hashable:
        """A captured step may be replayed as long as this is what it was at the capture."""

    def add_request(self, req_idx: int, request: Request) -> None:
        """Take in a request; its row is free."""

    def remove_request(self, req_idx: int) -> None:
        """Forget a request."""

    def apply_staged_writes(self) -> None:
        """Bring added requests to the device."""

    def warm_up(self, logits: Tensor, bitmask: Tensor | None) -> None:
        """Compile all that steps with such logits, and with and without the bitmask, need; no request is alive."""

    def row_params(self, state_rows: Tensor, positions: Tensor) -> RowParams:
        """The parameters of requests int64 [N] (-1 reads row 0) at positions int64 [N]."""

    def sample(self, logits: Tensor, rows: LogitsRows, bitmask: Tensor | None) -> SampledRows:
        """Draw a token for each row of logits [N, >= V]; the next call may overwrite what is returned."""

    def row_paths(self, num_rows: int) -> list[str]:
        """As `Sampler.row_paths`."""

    def commit(self, idx_mapping: Tensor, token_ids: Tensor, num_sampled: Tensor) -> None:
        """Remember what was emitted; shapes as in `Sampler.commit`."""
