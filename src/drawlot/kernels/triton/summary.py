"""What a row's draw leaves behind, from which its logprobs are computed."""

import triton
import triton.language as tl

NO_TOKEN, GREEDY, LISTED, TILES, WHOLE = (tl.constexpr(i) for i in range(5))
"""Paths of a row: a bad or skipped one, greedy, from a short list, from tile masses, from whole reads"""

ALL_COLUMNS = tl.constexpr(-1)
"""In the place of a rank: all columns of the row are stored; its rank may still be counted there"""

COUNT, COUNT_OF_RANKS, ARRIVALS, UNDECIDED, COUNT_OF_UNSURE, NUM_SETTLED, NUM_ROWS, RANKED = (
    tl.constexpr(i) for i in range(8)
)
"""Places in `Tiles.control`: counts from 0 up; what `decided` counts; and N, how many rows it counts"""


@triton.jit
def put(drawn, summary, row, token, status, path, maximum, log_mass):
    """Stores a row's token and summary, its cut and rank apart."""
    tl.store(drawn.token_ids + row, token)
    tl.store(drawn.status + row, status)
    tl.store(summary.path + row, path)
    tl.store(summary.floats + row, maximum)
    tl.store(summary.floats + summary.num_rows + row, log_mass)


@triton.jit
def put_cut(summary, row, value, token):
    """Stores value and id of the last kept token; without filters -inf and -1."""
    tl.store(summary.cut_value + row, value)
    tl.store(summary.cut_id + row, token)
