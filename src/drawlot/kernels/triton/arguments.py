"""What the kernels are given, packed: one launch takes a few named tuples of pointers and numbers."""

from typing import Any, NamedTuple

from torch import Tensor


class Rows(NamedTuple):
    """The logits of N rows and what edits them. None: nobody asked for it."""

    logits: Tensor
    """float32, bfloat16 or float16 [N, >= V]"""
    stride: int
    """Of the logits, in elements; columns are adjacent"""
    vocab_size: int
    num_tiles: int
    bitmask: Tensor | None
    """int32 [N, >= V / 32], the grammar's; may name fewer words than the last tile has"""
    bitmask_stride: int
    edits: "Overlay | None"
    """What edits beyond the bitmask make of them"""
    overlay: "Overlay | None"
    """Laid over that: refused drafts"""
    edits_of: Any = None
    """`RowEdits`, packed, of which the scan makes `edits`; None: they are there before"""


class Overlay(NamedTuple):
    """The values of tokens that edits touch, laid over the logits on load."""

    kind: Tensor
    """int32 [N]: 0 = nothing edited, 1 = touched tokens have new values, 2 = and the others may not be drawn; -1 -
    slot = nothing is laid over it, its edits are in the tables alone, see `lowered`"""
    touched: Tensor
    """int32 [N, words]: bit id & 31 of word id >> 5; defined where `kind` is above 0"""
    new_values: Tensor
    """float32 [N, width], defined where touched; of rows that are `lowered` without top_k the first two are what
    `lost_mass` says"""
    words: int
    """Of whole tiles, four each, in `Rows.edits`: read at once"""
    width: int
    """Likewise"""


class EditTables(NamedTuple):
    """What requests edit, those that do owning a slot; see `edit_tables` and `edit_flags`."""

    slot_of: Tensor
    """int64 [S], -1: the request edits nothing"""
    asked: Tensor
    """As `States.asked`"""
    entries: Tensor
    """int32 [slots, V]: flags and count of each token, 0 where it is not touched"""
    touched: Tensor
    """int32 [slots, words]: bit id & 31 of word id >> 5"""
    touched_ids: Tensor
    """int32 [slots, most_touched]: the tokens whose bits are set, in any order; not all if they are more"""
    num_touched: Tensor
    """int32 [slots, 1]: how many they are, unless they are too many"""
    bias: Tensor
    """float32 [slots, V], defined where an entry says so; else never read"""
    penalties: Tensor
    """float32 [slots, 4]: repetition, frequency, presence; which flags of entries matter besides, as a number"""
    limits: Tensor
    """int64 [slots, 2]: the first position where stop ids may be drawn; the number of bad words"""
    tails: Tensor
    """int32 [slots, longest]: the last tokens of the output, the last one rightmost; -1 where there is none"""
    bad_words: Tensor
    """int32 [slots, most, longest]: likewise"""
    banned: Tensor
    """int32 [N, words]: bits of the last ids of bad words that a row would complete; defined where an entry says so"""
    vocab_size: int
    num_words: int
    most_touched: int
    longest_bad_word: int
    most_bad_words: int


class RowEdits(NamedTuple):
    """What the overlay of the rows of a step is made of. All but the tables: as in `LogitsRows`."""

    tables: Any
    """`EditTables`, packed"""
    state_rows: Tensor
    positions: Tensor
    local_positions: Tensor
    input_ids: Tensor


class Emitted(NamedTuple):
    """What requests emitted in a step, as in `Sampler.commit`."""

    state_rows: Tensor
    token_ids: Tensor
    stride: int
    column_stride: int
    width: int
    num_sampled: Tensor


class States(NamedTuple):
    """The parameters of requests in tables [.., S], and which request each row belongs to."""

    floats: Tensor
    """float64 [3, S]: temperature, top_p, min_p"""
    ints: Tensor
    """int64 [3, S]: top_k, seed, choice"""
    asked: Tensor
    """int64 [S]: what the scan needs to know, see `states.bits_for_scan`; so that it waits for one number"""
    num_states: int
    """S"""
    index: Tensor  # type: ignore[assignment]
    """int64 [N], -1: the row is skipped"""
    positions: Tensor
    """int64 [N]"""
    step_rows: Tensor | None
    """int64 [N]; None: all 0"""


class Tiles(NamedTuple):
    """Tile summaries of the scan, [N, stride]."""

    maxima: Tensor
    """float32, of the values; -inf for a tile without a token"""
    sums: Tensor
    """float32, sum of exp((value - tile maximum) scale), of edited rows with top_k and raw logprobs a bound of it; NaN
    where a logit or value is NaN or +inf"""
    best_groups: Tensor
    """int32: the best group of four neighbours, and a bound of the others; see `tile_summary.best_group`"""
    raw_maxima: Tensor | None
    """Maxima and sums of raw logits at T = 1, for rows in which they differ; None: no row wants raw logprobs"""
    raw_sums: Tensor | None
    stride: int
    num: int
    """How many the scan stores of a row, in whole blocks: a multiple of 16, so that they are loaded four at once"""
    control: Tensor
    """int64 [8]: counters that the scan sets back, see `summary.COUNT` and the others"""
    undrawn: Tensor | None = None
    """int32 [N]: 1 where nobody asks for the token of a row that is read whole; None: all tokens are asked for"""
    edit_bounds: Tensor | None = None
    """int32 [N, stride], of edited rows: an order that no touched token of a tile exceeds; of those that are `lowered`
    what `lowered.lows_of` returns; None: nobody asks"""


class Lists(NamedTuple):
    """Scratch: the best tokens of each row, those of a tile side by side, else in any order."""

    tile_ids: Tensor
    """int32 [N, T]: groups of four from the front, tiles from the back, see `listing.select_groups`"""
    keys: Tensor
    """int64 [N, room]: the tokens, see `listing.key_of`; `listing.NO_KEY` past the end"""
    masses: Tensor
    """int64 [N, room]: exp(z) 2^40 of each, in the order of their values"""
    numbers: Tensor
    """int32 [N, 4], 16 bytes a row: how many groups and tiles, how many tokens; see `listing.load_numbers` and
    `listing.list_tokens`"""
    width: int
    """T"""
    room: int


class Whole(NamedTuple):
    """Scratch for rows whose cut a short list does not hold, and for ranks that it does not tell."""

    rows: Tensor
    """int32 [N]: which rows, `control[COUNT]` of them, in any order"""
    unsure: Tensor
    """int32 [N]: those of them whose exact cut decides what is drawn, `control[COUNT_OF_UNSURE]` of them"""
    rank_rows: Tensor
    """int32 [N]: rows whose rank is to be counted, -1 - row if that is all; `control[COUNT_OF_RANKS]` of them"""
    low: Tensor
    """float32 [N]: the last kept value is probably at least this, and"""
    high: Tensor
    """float32 [N]: below this; and"""
    line: Tensor
    """float32 [N]: surely at least this, since min_p wants it, or since it is `low`"""
    sums: Tensor
    """int64 [N, 8]: what is known of all tokens of a row, see `ranges.NUM_ABOVE` and the others"""
    listed: Tensor
    """int32 [N]: tokens of the long list, all that the cut may be, counting on where the room ends"""
    tokens: Tensor
    """int64 [N, room]: the long list, the bits of a value above its token's id"""
    ranges: Tensor
    """int64 [N, 256]: what each of so many ranges of values weighs, see `ranges` and `cut_in_list`"""
    taken: Tensor
    """int32 [N]: tokens in one of them"""
    floats: Tensor
    """float64 [N, 4]: what is asked of a row, by its place in `rows`, see `proposal.put_request`"""
    ints: Tensor
    """int64 [N, 8]: likewise"""
    all_masses: Tensor
    """int64 [N]: of all its tokens, see `cut_race.tiles_of`; by its place in `rows`"""
    proposals: Tensor
    """int32 [N, 32]: see `proposal.LOW` and the others; by its place in `rows`"""
    counts: Tensor
    """int64 [N, 16]: what a read sums up, see `weigh_proposals.FROM_LOW` and the others; by its place in `rows`"""
    kept_sums: Tensor
    """float32 [N, T]: as `Tiles.sums`, of kept tokens; only where `Tiles.undrawn` says who draws"""
    noises: Tensor
    """float32 or float64 [N, T]: of tiles, of rows without top_k, for a finish that may race over them"""


class Summary(NamedTuple):
    """What the draw leaves behind for logprobs, one entry a row."""

    floats: Tensor
    """float64 [4, N]: row maximum, log of the kept mass, raw maximum, log of the raw mass"""
    cut_value: Tensor
    """float32 [N]: value of the last kept token; -inf without filters"""
    cut_id: Tensor
    """int32 [N]: its id"""
    rank: Tensor
    """int32 [N]: 1 + tokens before the drawn one in the order of values; 0 where it is not known"""
    path: Tensor
    """int32 [N]: see `summary.WHOLE` and the others"""
    num_rows: int
    """N"""


class Wanted(NamedTuple):
    """Which logprobs each row wants, as `LogprobsWanted`."""

    wanted: Tensor
    num_top: Tensor
    token_ids: Tensor
    num_token_ids: int


class Drawn(NamedTuple):
    """The outputs of the draw."""

    token_ids: Tensor
    """int64 [N]"""
    status: Tensor
    """uint8 [N]"""


class Columns(NamedTuple):
    """The outputs of logprobs."""

    ids: Tensor
    """int64 [N, C]"""
    logprobs: Tensor
    """float32 [N, C]"""
    ranks: Tensor
    """int64 [N]"""
    count: int  # type: ignore[assignment]
    """C"""
