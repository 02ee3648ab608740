"""Tokens that a whole row proposes before its cut is known, and what must be true of the cut for one to be right.

Raced is as if more were kept than the cut keeps. Where less is kept the keys of tiles are no larger, so that who wins
has won as long as it is kept, and so much of its tile that no other tile overtakes it: as long as one token, the
`needed` one, is kept. The first proposal races where a list or a sample says that the cut is hardly ever lower. What it
needs is mostly above where the cut likely is; else raced is once more, as if the needed one were dropped, and so on.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import LARGEST, mass_of_tokens, min_p_line
from drawlot.kernels.triton.cut_race import bounds_of, is_kept, load_tiles, weighed_tiles
from drawlot.kernels.triton.likely_cut import likely_cut, sample_for_cut
from drawlot.kernels.triton.listing import key_of, token_of
from drawlot.kernels.triton.noise import gumbel
from drawlot.kernels.triton.race import TARGET_TILE, TARGET_TOKEN, z_of
from drawlot.kernels.triton.reduce import LARGEST_KEY, first_largest, of_fixed, sum_four, two_largest, two_lowest
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.sure_winner import least_kept
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE, load_values, order_of, value_of

RECORD, MOST = tl.constexpr(32), tl.constexpr(4)
LOW, LINE, NUM, FIRST, EACH = (tl.constexpr(i) for i in (0, 1, 2, 4, 4))
"""Places in `Whole.proposals`: all that is kept is hoped to be from the one value on, and is from the other on, as
min_p wants it; how many proposals there are, MOST at most; where they begin, each of EACH places"""
NEEDED_VALUE, NEEDED_ID, VALUE, TOKEN = (tl.constexpr(i) for i in range(4))
"""Places in a proposal"""

_MOST_DROPPED = tl.constexpr(32)
"""Tokens that are tried one by one; then the next of them is needed, though less might do"""
_KEY_SLACK = tl.constexpr(1e-4)
"""More than what rounding adds to a key"""
_LEAST_MASS, _LEAST_SHARE = tl.constexpr(1e-30), tl.constexpr(1e-2)
"""Masses of tiles are exact enough from the one on, and as long as so much is left of what was summed"""


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
def request_of(whole, slot):
    """Row (int64), filters, law (maximum, float32, and temperature, float64), noise key and wants, of `put_request`."""
    # All at once: one that is loaded after a branch on another would cost the latency of memory again.
    floats, ints = whole.floats + 4 * slot, whole.ints + 8 * slot
    row, top_k, seed = tl.load(ints), tl.load(ints + 1), tl.load(ints + 2)
    position, choice, step_row, wants = tl.load(ints + 3), tl.load(ints + 4), tl.load(ints + 5), tl.load(ints + 6)
    temperature, top_p, min_p, row_max = tl.load(floats), tl.load(floats + 1), tl.load(floats + 2), tl.load(floats + 3)
    filters, law = (top_k, top_p, min_p), (row_max.to(tl.float32), temperature)
    return row, filters, law, (seed, position, choice, step_row), wants


@triton.jit
def propose(rows, tiles, lists, whole, slot, request, WIDE: tl.constexpr, T: tl.constexpr, ROOM: tl.constexpr):
    """Stores the proposals of a row without top_k; request: of `request_of`."""
    row, filters, law, key, _wants = request
    _top_k, top_p, min_p = filters
    row_max, temperature = law
    scale = scale_of(temperature)
    maxima, sums = load_tiles(tiles, row, T)
    # Behind the tiles, since loads come in turn, and not all rows wait for it.
    sample = sample_for_cut(rows, row, T)
    shift, all_mass = weighed_tiles(maxima, sums, row_max, temperature, WIDE)
    line = tl.full([], -LARGEST, tl.float32)
    if min_p > 0:
        line = value_of(min_p_line(order_of(row_max), temperature, min_p))
    # Of a row that tells by its list from where on it keeps tokens nothing needs to be guessed.
    low, likely, row_mass = tl.full([], MINUS_INF, tl.float32), line, of_fixed(all_mass).to(tl.float32)
    if (top_p < 1) & (min_p == 0) & (top_p * row_mass <= ROOM):
        low, likely = least_kept(lists, row, maxima, row_mass, top_p, row_max, temperature, ROOM)
    # Of a tile that was not read what its key cannot exceed, as of one that was read when more was kept.
    keys = bounds_of(row < 0, maxima, sums, shift, tl.maximum(line, low), temperature, key, WIDE, T)
    tile, place = tl.arange(0, T), tl.arange(0, 2 * TILE)
    is_one = place < TILE
    one, two, third = two_largest(keys, tile)
    ids = tl.where(is_one, one, two) * TILE + place % TILE
    # Asked for before the cut is guessed, and there when it is.
    x = load_values(rows, row, ids, place >= 0)
    if low == MINUS_INF:
        # Without top_p the line is the cut, and what it keeps is not in question.
        low, likely = line, tl.full([], -LARGEST, tl.float32)
        if top_p < 1:
            low, likely = likely_cut(rows, sample, top_p, temperature, row_max, scale, all_mass, line, T)
    record = whole.proposals + slot * RECORD
    tl.store(record + LOW, low.to(tl.int32, bitcast=True))
    tl.store(record + LINE, line.to(tl.int32, bitcast=True))
    tl.store(whole.all_masses + slot, all_mass)
    keys = tl.where(maxima >= low, keys, MINUS_INF)
    cut_value, cut_id = low, tl.full([], LAST_ID, tl.int32)
    num, races = tl.zeros([], tl.int32), row >= 0
    while races:
        kept = is_kept(x, ids, cut_value, cut_id)
        mass = tl.where(kept, mass_of_tokens(x, row_max, scale), 0.0)
        above = tl.where(x > likely, mass, 0.0)
        of_one, of_two, above_one, above_two = sum_four(
            tl.where(is_one, mass, 0.0),
            tl.where(is_one, 0.0, mass),
            tl.where(is_one, above, 0.0),
            tl.where(is_one, 0.0, above),
        )
        noise_one = gumbel(one, key[0], key[1], TARGET_TILE, key[2], key[3], WIDE)
        noise_two = gumbel(two, key[0], key[1], TARGET_TILE, key[2], key[3], WIDE)
        key_one, key_two = tl.log(of_one) + noise_one, tl.log(of_two) + noise_two
        keys = tl.where(tile == one, key_one, tl.where(tile == two, key_two, keys))
        leads = key_one >= key_two
        leader, rival = tl.maximum(key_one, key_two), tl.maximum(tl.minimum(key_one, key_two), third)
        if leader >= third:
            own, own_noise = tl.where(leads, of_one, of_two), tl.where(leads, noise_one, noise_two)
            races = (leader - _KEY_SLACK > rival) & (own > _LEAST_MASS)
            if races:
                of_leader = is_one == leads
                z = tl.where(kept & of_leader, z_of(x, row_max, temperature, WIDE), MINUS_INF)
                noise = gumbel(ids, key[0], key[1], TARGET_TOKEN, key[2], key[3], WIDE)
                token, order = first_largest(z + noise, ids, order_of(x))
                value = value_of(order)
                needed_value, needed_id = likely, token * 0
                own_above = tl.where(leads, above_one, above_two)
                if (value <= likely) | (tl.log(own_above) + own_noise - _KEY_SLACK <= rival):
                    other = tl.where(leads, of_two, of_one), tl.where(leads, noise_two, noise_one)
                    kept_keys = tl.where(kept, key_of(x, ids), LARGEST_KEY)
                    winner, of_mass = key_of(value, token), (row_max, scale)
                    last = _last_needed(kept_keys, winner, of_mass, (own, own_noise), other, third, likely)
                    needed_value, needed_id = value_of(last >> 32), token_of(last)
                proposal = record + FIRST + EACH * num
                tl.store(proposal + NEEDED_VALUE, needed_value.to(tl.int32, bitcast=True))
                tl.store(proposal + NEEDED_ID, needed_id)
                tl.store(proposal + VALUE, value.to(tl.int32, bitcast=True))
                tl.store(proposal + TOKEN, token)
                num += 1
                cut_value, cut_id = needed_value, needed_id - 1
                races = (num < MOST) & (needed_value < likely)
        # As long as one of the two leads, no other tile is read.
        if races & (leader < third):
            one, two, third = two_largest(keys, tile)
            ids = tl.where(is_one, one, two) * TILE + place % TILE
            x = load_values(rows, row, ids, place >= 0)
    tl.store(record + NUM, num)


@triton.jit
def _last_needed(keys, winner, of_mass, own, other, third, likely):
    """Key (of `key_of`) of the last token of two tiles that is needed for a tile and its `winner` to win.

    keys: of the kept tokens of both tiles; of_mass: maximum of the row and scale; own, other: mass and noise of the
    winner's tile and of its rival; third: what no other tile's key exceeds. Tokens are dropped one by one, the last
    ones first, as long as nothing changes, and as they are not above what is `likely` to be dropped.
    """
    own_mass, own_noise = own
    other_mass, other_noise = other
    enough, least = own_mass * _LEAST_SHARE, other_mass * _LEAST_SHARE
    last, num, stays = winner * 0 - LARGEST_KEY, 0, own_mass > 0
    while stays:
        # Two of them by one exchange between threads.
        next_key, after = two_lowest(tl.where(keys > last, keys, LARGEST_KEY))
        for i in tl.static_range(2):
            if stays:
                last = next_key if i == 0 else after
                mass = mass_of_tokens(value_of(last >> 32), of_mass[0], of_mass[1])
                is_own = token_of(last) // TILE == token_of(winner) // TILE
                own_mass -= tl.where(is_own, mass, 0.0)
                other_mass = tl.maximum(other_mass - tl.where(is_own, 0.0, mass), least)
                rival = tl.maximum(tl.log(other_mass) + other_noise, third)
                stays = (own_mass > enough) & (tl.log(own_mass) + own_noise - _KEY_SLACK > rival)
                num += 1
                stays = stays & (last != winner) & (value_of(last >> 32) <= likely) & (num < _MOST_DROPPED)
    return last
