"""What the kernels of every backend are given. N: rows of logits, V: vocabulary.

All tensors of one call lie on the device of the logits.
"""

from typing import Any, NamedTuple

from torch import Tensor

TILE = 128
"""Tokens of one race tile: tile t holds the ids 128 t .. 128 t + 127, whatever the kernels' own block sizes."""

SMALLEST_TEMPERATURE = 2.0**-126
"""Positive temperatures below it count as this one, so that its reciprocal is a float32."""


class RowParams(NamedTuple):
    """The parameters of each row that the draw itself needs, after validation."""

    temperature: Tensor
    """float64 [N], 0 = greedy"""
    top_k: Tensor
    """int64 [N], <= 0 = off"""
    top_p: Tensor
    """float64 [N], 1 = off"""
    min_p: Tensor
    """float64 [N], 0 = off"""
    seed: Tensor
    """int64 [N]"""
    position: Tensor
    """int64 [N]: index, in prompt + output, of the token being drawn; of row 0 of the step, where row > 0"""
    choice: Tensor
    """int64 [N]"""
    row: Tensor
    """int64 [N]: row within a verified step, 0 for an ordinary draw"""

    def pick(self, rows: Tensor | slice) -> "RowParams":
        """Those of some rows."""
        return RowParams(*(column[rows] for column in self))


class BatchFacts(NamedTuple):
    """What the host knows of the rows of a batch, without a word from the device; skipped rows do not count."""

    greedy: bool
    """Some row has temperature 0"""
    seeded: bool
    """Some row's seed is its user's own"""
    filtered: bool
    """Some row has top_k or top_p"""
    min_p: bool
    """Some row has min_p"""
    tempered: bool
    """Some row has a temperature other than 1"""


class SparseBias(NamedTuple):
    """Adds values[i] to token ids[i] of row rows[i]; ids are distinct within a row."""

    rows: Tensor
    """int64 [E]"""
    ids: Tensor
    """int64 [E]"""
    values: Tensor
    """float32 [E]"""


class SparsePenalties(NamedTuple):
    """Penalises token ids[i] of row rows[i], seen before; ids are distinct within a row."""

    rows: Tensor
    """int64 [E]"""
    ids: Tensor
    """int64 [E]"""
    repetition: Tensor
    """float32 [E]: divides a positive value, multiplies another; 1 = off"""
    subtract: Tensor
    """float32 [E]: frequency * count in output"""
    subtract_once: Tensor
    """float32 [E]: presence where the token is in the output, else 0"""


class Edits(NamedTuple):
    """What changes logits into values (stages 1 and 2). None: nobody asked for it; a sparse edit has an entry.

    The bitmask is the grammar's: it also applies to raw logprobs; the other fields do not.
    """

    bitmask: Tensor | None = None
    """int32 [N, ceil(V / 32)]: bit id & 31 of word id >> 5 is set for an allowed id"""
    allowed: tuple[Tensor, Tensor] | None = None
    """int64 rows [E], ids [E]: the rows named may draw only the ids named for them"""
    masked: tuple[Tensor, Tensor] | None = None
    """int64 rows [E], ids [E]: these ids may not be drawn"""
    bias: SparseBias | None = None
    penalties: SparsePenalties | None = None

    @property
    def beyond_bitmask(self) -> bool:
        """Some edit makes values differ from the raw logits of raw logprobs."""
        return any(edit is not None for edit in self[1:])

    def rows(self, start: int, stop: int) -> "Edits":
        """The edits of rows start .. stop - 1, counted from start."""
        return Edits(
            None if self.bitmask is None else self.bitmask[start:stop],
            _entries(self.allowed, start, stop),
            _entries(self.masked, start, stop),
            _entries(self.bias, start, stop),
            _entries(self.penalties, start, stop),
        )


def _entries(edit: Any, start: int, stop: int) -> Any:
    """The entries of a sparse edit that belong to rows start .. stop - 1, counted from start; None if none do."""
    if edit is None:
        return None
    mine = (edit[0] >= start) & (edit[0] < stop)
    if not bool(mine.any()):
        return None
    columns = edit[0][mine] - start, *(column[mine] for column in edit[1:])
    return type(edit)(*columns) if hasattr(edit, "_fields") else columns


class LogprobsWanted(NamedTuple):
    """Which logprobs each row asks for."""

    mode: str
    """raw_logprobs, processed_logprobs, raw_logits or processed_logits"""
    wanted: Tensor
    """bool [N]: rows that ask for any; the others' cells stay unused"""
    num_top: Tensor
    """int64 [N]: top tokens of the row, best first"""
    token_ids: Tensor
    """int64 [N, L], -1 padded: the ids a row asks for instead of top tokens; L = 0 where no row does"""
    max_top: int
    """The largest num_top, known to the host"""

    @property
    def columns(self) -> int:
        """C: the drawn token and the longest list of any row."""
        return 1 + max(self.max_top, self.token_ids.shape[1])

    def pick(self, rows: Tensor | slice) -> "LogprobsWanted":
        """What some rows want."""
        return LogprobsWanted(self.mode, self.wanted[rows], self.num_top[rows], self.token_ids[rows], self.max_top)


class SampledRows(NamedTuple):
    """What a backend's `sample_rows` returns."""

    token_ids: Tensor
    """int64 [N], -1 for a bad row"""
    status: Tensor
    """uint8 [N], flags of RowStatus"""
    logprobs: tuple[Tensor, Tensor, Tensor] | None
    """ids int64 [N, C], logprobs float32 [N, C], rank of the drawn token int64 [N]"""
    margin: Tensor | None = None
    """float64 [N], the reference's alone: the smallest relative margin by which the row's decisions were made"""
