"""Tokens that a whole row proposes before its cut is known, and what must be true of the cut for one to be right.

Raced is as if more were kept than the cut keeps. Where less is kept the keys of tiles are no larger, so that who wins
has won as long as it is kept, and so much of its tile that no other tile overtakes it: as long as one token, the
`needed` one, is kept. The first proposal races as if all were kept, for which the scan knows the keys of tiles. The
others begin where a sample says that the cut is no lower; where what one needs may be dropped, raced is once more, as
if it were. So one of them is right unless the winner changes more often than that within what a sample may err.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import LARGEST, mass_of, min_p_line
from drawlot.kernels.triton.cut_race import bounds_of, is_kept, race_of_cut, tiles_of
from drawlot.kernels.triton.likely_cut import likely_cut, sample_for_cut, span_of_cut
from drawlot.kernels.triton.listing import key_of, token_of
from drawlot.kernels.triton.noise import gumbel_of_range
from drawlot.kernels.triton.race import TARGET_TOKEN, z_of
from drawlot.kernels.triton.reduce import first_largest, largest, sum_four, sum_two
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE, load_values, order_of, value_of

RECORD, MOST = tl.constexpr(32), tl.constexpr(4)
LOW, LINE, NUM, IS_FIRST, FIRST, LATER, EACH = (tl.constexpr(i) for i in (0, 1, 2, 3, 4, 8, 4))
"""Places in `Whole.proposals`: all that is kept is hoped to be from the one value on, and is from the other on, as
min_p wants it; how many later proposals there are, MOST at most; of the first 1 if it may be right, 0 if another tile
may win, -1 if there is none; where it is, and where the later ones begin, each of EACH places"""
NEEDED_VALUE, NEEDED_ID, VALUE, TOKEN = (tl.constexpr(i) for i in range(4))
"""Places in a proposal"""

_TILES_OF_RACE = tl.constexpr(8)
"""Read at a time; mostly one or two can win"""
_LEVELS = tl.constexpr(2)
"""Rounds of five steps in which a value is sought"""
_MOST_DROPPED = tl.constexpr(16)
"""Tokens of a tile that are tried one by one; then the next of them is needed, though less might do"""
_LARGEST_KEY = tl.constexpr(2**63 - 1)
_SLACK = tl.constexpr(1e-4)
"""More than what rounding adds to a key"""


@triton.jit
def put_request(whole, slot, row, row_max, temperature, filters, key, wants):
    """Stores all that is asked of a whole row in one place; wants: 1, a rank; 2, one in another order than values'."""
    top_k, top_p, min_p = filters
    seed, position, choice, step_row = key
    floats, ints = whole.floats + 4 * slot, whole.ints + 8 * slot
    tl.store(floats, temperature)
    tl.store(floats + 1, top_p)
    tl.store(floats + 2, min_p)
    tl.store(floats + 3, row_max)
    tl.store(ints, row)
    tl.store(ints + 1, top_k)
    tl.store(ints + 2, seed)
    tl.store(ints + 3, position)
    tl.store(ints + 4, choice)
    tl.store(ints + 5, step_row)
    tl.store(ints + 6, wants)


@triton.jit
def filters_of_request(whole, slot):
    """As `states.filters_of`."""
    floats = whole.floats + 4 * slot
    return tl.load(whole.ints + 8 * slot + 1), tl.load(floats + 1), tl.load(floats + 2)


@triton.jit
def law_of_request(whole, slot):
    """Row (int64), its maximum (float32) and temperature (float64)."""
    floats = whole.floats + 4 * slot
    return tl.load(whole.ints + 8 * slot), tl.load(floats + 3).to(tl.float32), tl.load(floats)


@triton.jit
def key_of_request(whole, slot):
    """As `states.noise_key`."""
    ints = whole.ints + 8 * slot
    return tl.load(ints + 2), tl.load(ints + 3), tl.load(ints + 4), tl.load(ints + 5)


@triton.jit
def wants_of_request(whole, slot):
    """Of `put_request`."""
    return tl.load(whole.ints + 8 * slot + 6)


@triton.jit
def propose_first(rows, tiles, whole, slot, WIDE: tl.constexpr, T: tl.constexpr):
    """Stores the first proposal of a row that top_p alone cuts."""
    row, row_max, temperature = law_of_request(whole, slot)
    key = key_of_request(whole, slot)
    top_p, record = tl.load(whole.floats + 4 * slot + 1), whole.proposals + slot * RECORD
    maxima, sums, shift, all_mass = tiles_of(rows, tiles, row, row_max, temperature, WIDE, T)
    keys = bounds_of(row < 0, maxima, sums, shift, -LARGEST, temperature, key, WIDE, T)
    tile = tl.arange(0, T)
    its_key, winner, _ = largest(keys, tile, tile)
    rival = tl.max(tl.where(tile == winner, MINUS_INF, keys))
    law = tl.full([], -LARGEST, tl.float32), tl.full([], LAST_ID, tl.int32), row_max, temperature
    share = tl.exp((rival - its_key).to(tl.float32) + _SLACK)
    token, value, x, ids, mass, after, spare = _winner_of(rows, row, winner, share, law, key, WIDE)
    needed_value, needed_id = value, token
    if after > spare:
        bottom, top = span_of_cut(rows, top_p, all_mass)
        needed_value = _level(x, mass, spare, row_max + (temperature * bottom).to(tl.float32), value)
        needed_id = token * 0
    _put(record + FIRST, needed_value, needed_id, value, token)
    tl.store(record + IS_FIRST, (spare >= 0).to(tl.int32))
    tl.store(whole.all_masses + slot, all_mass)


@triton.jit
def propose_later(rows, tiles, whole, slot, is_settled, WIDE: tl.constexpr, T: tl.constexpr):
    """Stores the later proposals of a row without top_k, unless it `is_settled` meanwhile; a pointer."""
    row, row_max, temperature = law_of_request(whole, slot)
    _top_k, top_p, min_p = filters_of_request(whole, slot)
    key, scale = key_of_request(whole, slot), scale_of(temperature)
    sample = sample_for_cut(rows, row, T)
    line = tl.full([], -LARGEST, tl.float32)
    if min_p > 0:
        line = value_of(min_p_line(order_of(row_max), temperature, min_p))
    maxima, sums, shift, all_mass = tiles_of(rows, tiles, row, row_max, temperature, WIDE, T)
    # Without top_p the line is the cut.
    low, likely = line, line
    if top_p < 1:
        low, likely = likely_cut(
            rows, whole, slot, sample, top_p, temperature, row_max, scale, all_mass, line, min_p > 0
        )
        low = tl.maximum(low, line)
    bounds = bounds_of(row < 0, maxima, sums, shift, low, temperature, key, WIDE, T)
    record = whole.proposals + slot * RECORD
    tl.store(record + LOW, low.to(tl.int32, bitcast=True))
    tl.store(record + LINE, line.to(tl.int32, bitcast=True))
    cut_value, cut_id = low, tl.full([], LAST_ID, tl.int32)
    num = tl.zeros([], tl.int32)
    races = tl.atomic_add(is_settled, 0, sem="relaxed") == 0
    while races:
        law = cut_value, cut_id, row_max, temperature
        tile, its_key, rival = race_of_cut(rows, row, bounds, law, key, _TILES_OF_RACE, True, WIDE, T)
        races = row < 0
        if tile >= 0:
            share = tl.exp((rival - its_key).to(tl.float32) + _SLACK)
            token, value, x, ids, mass, after, spare = _winner_of(rows, row, tile, share, law, key, WIDE)
            if spare >= 0:
                needed_value, needed_id = value, token
                if after > spare:
                    if (tl.sum(tl.where(x <= likely, mass, 0.0)) <= spare) & (value > likely):
                        # Mostly nothing else is in question.
                        needed_value, needed_id = likely, token * 0
                    else:
                        kept = is_kept(x, ids, cut_value, cut_id)
                        needed_value, needed_id = _last_needed(x, ids, kept, mass, spare, token)
                _put(record + LATER + EACH * num, needed_value, needed_id, value, token)
                num += 1
                cut_value, cut_id = needed_value, needed_id - 1
                races = (num < MOST) & (needed_value < likely)
                if races:
                    races = tl.atomic_add(is_settled, 0, sem="relaxed") == 0
    tl.store(record + NUM, num)


@triton.jit
def _put(proposal, needed_value, needed_id, value, token):
    tl.store(proposal + NEEDED_VALUE, needed_value.to(tl.int32, bitcast=True))
    tl.store(proposal + NEEDED_ID, needed_id)
    tl.store(proposal + VALUE, value.to(tl.int32, bitcast=True))
    tl.store(proposal + TOKEN, token)


@triton.jit
def _winner_of(rows, row, tile, share, law, key, WIDE: tl.constexpr):
    """Who wins in a tile, and its value; values and ids of the tile, and masses of its kept tokens.

    And what those after the winner weigh, and how much may be dropped; that is less than 0 if another tile may win.
    share: of what the cut `law` keeps of the tile, as much as wins over all other tiles.
    """
    cut_value, cut_id, row_max, temperature = law
    ids = tile * TILE + tl.arange(0, TILE)
    x = load_values(rows, row, ids, ids >= 0)
    kept = is_kept(x, ids, cut_value, cut_id)
    z = tl.where(kept, z_of(x, row_max, temperature, WIDE), MINUS_INF)
    noise = gumbel_of_range(tile * TILE, TILE, key[0], key[1], TARGET_TOKEN, key[2], key[3], WIDE)
    token, order = first_largest(z + noise, ids, order_of(x))
    value = value_of(order)
    mass = tl.where(kept, mass_of(x, row_max, scale_of(temperature)), 0.0)
    after = tl.where((x < value) | ((x == value) & (ids > token)), mass, 0.0)
    total, after = sum_two(mass, after)
    return token, value, x, ids, mass, after, total - share * total


@triton.jit
def _level(x, mass, spare, bottom, top):
    """A value so high, within a little, that the tokens of a tile that do not exceed it weigh no more than `spare`."""
    highest, bottom = top, tl.minimum(bottom, top)
    for _ in tl.static_range(_LEVELS):
        step = (top - bottom) / 5
        one, two, three, four = sum_four(
            tl.where(x <= bottom + step, mass, 0.0),
            tl.where(x <= bottom + 2 * step, mass, 0.0),
            tl.where(x <= bottom + 3 * step, mass, 0.0),
            tl.where(x <= bottom + 4 * step, mass, 0.0),
        )
        fit = (one <= spare).to(tl.int32) + (two <= spare).to(tl.int32)
        fit += (three <= spare).to(tl.int32) + (four <= spare).to(tl.int32)
        bottom += step * fit
        top = bottom + step
    # Where the temperature is near the largest float, a step is infinite and no value comes of it.
    fits = (tl.sum(tl.where(x <= bottom, mass, 0.0)) <= spare) & (bottom <= highest)
    return tl.where(fits, bottom, -LARGEST)


@triton.jit
def _last_needed(x, ids, kept, mass, spare, token):
    """Value and id of the last token of a tile that is needed, if others without which it wins weigh `spare` at most.

    The kept tokens are dropped one by one from the last one on, but for the given one.
    """
    key = tl.where(kept, key_of(x, ids), _LARGEST_KEY)
    own = tl.min(tl.where(ids == token, key, _LARGEST_KEY))
    last = tl.min(key)
    dropped, num = tl.max(tl.where(key == last, mass, 0.0)), 0
    while (dropped <= spare) & (last != own) & (num < _MOST_DROPPED):
        last = tl.min(tl.where(key > last, key, _LARGEST_KEY))
        dropped += tl.max(tl.where(key == last, mass, 0.0))
        num += 1
    return value_of(last >> 32), token_of(last)
