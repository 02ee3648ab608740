"""The rows of a step whose logits are wanted: of draws and drafts, of scores, of prompt logprobs."""

from collections.abc import Sequence
from typing import NamedTuple

from drawlot.engine.batch import Staging
from drawlot.engine.scheduler import Chunk


class DraftedChunk(NamedTuple):
    """A chunk and the drafts that follow its tokens."""

    chunk: Chunk
    draft_ids: Sequence[int] = ()

    @property
    def num_tokens(self) -> int:
        """In the flat batch."""
        return self.chunk.num_tokens + len(self.draft_ids)


class WantedRows(NamedTuple):
    """Chunks by what is wanted of them, with places in the staging. Rows of draws come first, then scores, prompts.

    R: choices that draw, N: their rows, one for each draft and one more.
    """

    drawing: list[DraftedChunk]
    scoring: list[Chunk]
    prompts: list[tuple[Chunk, range]]
    """Positions of the prompt whose next token's logprobs are wanted"""
    num_drawing_rows: int
    logits_rows: int
    """Of all rows: tokens of the flat batch"""
    state_rows: int
    """[R]"""
    expanded_state_rows: int
    """[N]"""
    local_positions: int
    """[N]: of the row among its choice's"""
    positions: int
    """[N]: of the token that is drawn"""
    input_ids: int
    """[N]: the token before it"""
    first_rows: int
    """[R + 1]"""


def stage(staging: Staging, drafted: Sequence[DraftedChunk]) -> WantedRows:
    """Find the rows that are wanted and stage what the sampler must know; `drafted` in the order of the flat batch."""
    drawing: list[DraftedChunk] = []
    scoring: list[Chunk] = []
    prompts: list[tuple[Chunk, range]] = []
    draw_rows: list[int] = []
    score_rows: list[int] = []
    prompt_rows: list[int] = []
    offset = 0
    for each in drafted:
        chunk, choice = each.chunk, each.chunk.choice
        last = offset + chunk.num_tokens - 1
        if chunk.draws and choice.request.label_token_ids:
            scoring.append(chunk)
            score_rows.append(last)
        elif chunk.draws and choice.request.max_tokens:
            drawing.append(each)
            draw_rows.extend(range(last, offset + each.num_tokens))
        positions = prompt_positions(chunk)
        if positions:
            prompts.append((chunk, positions))
            prompt_rows.extend(offset + position - choice.num_computed for position in positions)
        offset += each.num_tokens
    counts = [1 + len(each.draft_ids) for each in drawing]
    ends = [each.chunk.end for each in drawing]
    rows = [each.chunk.choice.row for each in drawing]
    first_rows = [0]
    for count in counts:
        first_rows.append(first_rows[-1] + count)
    add = staging.add
    return WantedRows(
        drawing,
        scoring,
        prompts,
        num_drawing_rows=len(draw_rows),
        logits_rows=add(draw_rows + score_rows + prompt_rows),
        state_rows=add(rows),
        expanded_state_rows=add([row for row, count in zip(rows, counts) for _ in range(count)]),
        local_positions=add([j for count in counts for j in range(count)]),
        positions=add([end + j for end, count in zip(ends, counts) for j in range(count)]),
        input_ids=add([token for each in drawing for token in (each.chunk.choice.token_ids[-1], *each.draft_ids)]),
        first_rows=add(first_rows),
    )


def prompt_positions(chunk: Chunk) -> range:
    """The positions of the chunk after which a prompt token stands whose logprobs are wanted."""
    choice = chunk.choice
    if not choice.reads_prompt_logprobs:
        return range(0)
    request = choice.request
    # The first rows may have been read before a preemption.
    first = max(choice.num_computed, len(request.prompt_logprobs) - 1)
    return range(first, min(chunk.end, len(request.prompt_token_ids) - 1))
