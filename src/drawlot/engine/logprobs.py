"""Columns of logprobs, as the sampler leaves them, made into what users read."""

from collections.abc import Callable, Iterator

from drawlot.engine.outputs import Logprob, LogprobsAtPosition
from drawlot.outputs import LogprobsTensors

TokenText = Callable[[int], str]


def at_positions(columns: LogprobsTensors, token_text: TokenText | None) -> Iterator[LogprobsAtPosition]:
    """The logprobs of each row; columns after the first are the best tokens, so their number is their rank."""
    rows = zip(columns.logprob_token_ids.tolist(), columns.logprobs.tolist(), columns.selected_token_ranks.tolist())
    for token_ids, values, rank in rows:
        yield at_position(token_ids, values, rank, token_text, ranked=True)


def at_position(
    token_ids: list[int], values: list[float], rank: int, token_text: TokenText | None, ranked: bool
) -> LogprobsAtPosition:
    """The logprobs of one row.

    Args:
        token_ids: The drawn token, then others; -1 ends the row.
        values: Theirs.
        rank: Of the drawn token.
        token_text: None leaves `decoded_token` empty.
        ranked: The others are the best tokens in their order.
    """
    logprobs: LogprobsAtPosition = {}
    for column, (token_id, value) in enumerate(zip(token_ids, values)):
        if token_id < 0:
            break
        if token_id not in logprobs:
            place = rank if column == 0 else column if ranked else None
            logprobs[token_id] = Logprob(value, place, None if token_text is None else token_text(token_id))
    return logprobs
