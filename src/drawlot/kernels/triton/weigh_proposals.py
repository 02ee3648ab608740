"""What parts of a whole row say of its proposals: what tokens weigh that come before others, and how many they are."""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import mass_of_tokens
from drawlot.kernels.triton.proposal import EACH, FIRST
from drawlot.kernels.triton.ranges import quarters_of
from drawlot.kernels.triton.reduce import FIXED_POINT, fixed_sum_of_masses, sum_four
from drawlot.kernels.triton.settling import proposal_at
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.values import TILE, load_stretch, load_values, order_of, value_of

NUM_COUNTS = tl.constexpr(16)
PROPOSED, READ, FROM_LOW, FROM_LINE, BEFORE, RANK = (tl.constexpr(i) for i in (0, 1, 2, 3, 4, 8))
"""Places in `Whole.counts`: whether proposals are there, and how many parts are read; mass of the tokens from `low` on,
and of those that min_p keeps; of each proposal the mass before the token that it needs, and how many come before it"""

_THREADS = tl.constexpr(256)


@triton.jit
def weigh(rows, counts, record, num, request, limits, x, part, stop, COUNT: tl.constexpr, TILES: tl.constexpr):
    """Adds what parts hold to a row's counts.

    record: of its proposals, of which COUNT (1, 2 or 4) are asked for and num are there; x: values of the first part.
    """
    # What a thread loads at once, a token of each four: sums of anything else would go through shared memory.
    PER: tl.constexpr = 32 // rows.logits.dtype.element_ty.primitive_bitwidth
    row, filters, law, _key, _wants = request
    _top_k, _top_p, min_p = filters
    row_max, temperature = law
    low, line = limits
    scale, begin = scale_of(temperature), part
    one, two, three, four = _proposals(record, num, COUNT)
    equals, equals_two = _equals_before(rows, row, one, row_max, scale), _equals_before(rows, row, two, row_max, scale)
    equals_three, equals_four = equals_two, equals_two
    if COUNT > 2:
        equals_three = _equals_before(rows, row, three, row_max, scale)
        equals_four = _equals_before(rows, row, four, row_max, scale)
    zero, none = tl.zeros([_THREADS], tl.int64), tl.zeros([_THREADS], tl.float32)
    from_low, from_line = zero, zero
    before, before_two, before_three, before_four = zero, zero, zero, zero
    rank, rank_two, rank_three, rank_four = none, none, none, none
    while part < stop:
        next_x = load_part(rows, row, part + 1, stop, TILES)
        quarters = quarters_of(x)
        zeros = tl.zeros(quarters[0].shape, tl.float32)
        of_low, of_line, of_one, of_two, of_three, of_four = zeros, zeros, zeros, zeros, zeros, zeros
        num_one, num_two, num_three, num_four = zeros, zeros, zeros, zeros
        least, own_least = _least_before(part, one, quarters)
        least_two, own_least_two = _least_before(part, two, quarters)
        least_three, own_least_three = _least_before(part, three, quarters)
        least_four, own_least_four = _least_before(part, four, quarters)
        # All that is summed quarter by quarter: of sums one after the other LLVM makes vectors, whose comparisons are
        # packed into bits and unpacked again, 544 instructions for 392.
        for i in tl.static_range(4):
            values = quarters[i]
            mass = mass_of_tokens(values, row_max, scale)
            of_low = _with_those_from(low, values, mass, of_low)
            of_one = _with_those_from(least, values, mass, of_one)
            num_one += (values >= own_least).to(tl.float32)
            if COUNT > 1:
                of_two = _with_those_from(least_two, values, mass, of_two)
                num_two += (values >= own_least_two).to(tl.float32)
            if COUNT > 2:
                of_three = _with_those_from(least_three, values, mass, of_three)
                num_three += (values >= own_least_three).to(tl.float32)
                of_four = _with_those_from(least_four, values, mass, of_four)
                num_four += (values >= own_least_four).to(tl.float32)
        from_low += _fixed_of_threads(of_low, PER)
        if min_p > 0:
            for i in tl.static_range(4):
                of_line = _with_those_from(line, quarters[i], mass_of_tokens(quarters[i], row_max, scale), of_line)
            from_line += _fixed_of_threads(of_line, PER)
        before += _fixed_of_threads(of_one, PER)
        rank += _of_threads(num_one, PER)
        if COUNT > 1:
            before_two += _fixed_of_threads(of_two, PER)
            rank_two += _of_threads(num_two, PER)
        if COUNT > 2:
            before_three += _fixed_of_threads(of_three, PER)
            rank_three += _of_threads(num_three, PER)
            before_four += _fixed_of_threads(of_four, PER)
            rank_four += _of_threads(num_four, PER)
        part += 1
        x = next_x
    ranks = rank.to(tl.int64) + (rank_two.to(tl.int64) << 32)
    from_low_sum, sum_one, sum_two, ranks_sum = sum_four(from_low, before, before_two, ranks)
    _add(counts, 0, sum_one, ranks_sum & 0xFFFFFFFF, one, equals, begin, stop, TILES)
    if COUNT > 1:
        _add(counts, 1, sum_two, ranks_sum >> 32, two, equals_two, begin, stop, TILES)
    if COUNT > 2:
        ranks = rank_three.to(tl.int64) + (rank_four.to(tl.int64) << 32)
        sum_three, fourth, ranks_sum, _ = sum_four(before_three, before_four, ranks, zero)
        _add(counts, 2, sum_three, ranks_sum & 0xFFFFFFFF, three, equals_three, begin, stop, TILES)
        _add(counts, 3, fourth, ranks_sum >> 32, four, equals_four, begin, stop, TILES)
    tl.atomic_add(counts + FROM_LOW, from_low_sum, sem="relaxed")
    if min_p > 0:
        tl.atomic_add(counts + FROM_LINE, tl.sum(from_line), sem="relaxed")


@triton.jit
def _proposals(record, num, COUNT: tl.constexpr):
    """Of num proposals the first COUNT; of three the last is the fourth, too."""
    one = proposal_at(record + FIRST)
    two, three, four = one, one, one
    if COUNT > 1:
        two = proposal_at(record + FIRST + EACH)
    if COUNT > 2:
        three = proposal_at(record + FIRST + 2 * EACH)
        four = proposal_at(record + FIRST + EACH * (num - 1))
    return one, two, three, four


@triton.jit
def _least_before(part, proposal, quarters):
    """From which values on tokens of a part come before the one that a proposal needs, and before its own.

    float32 [tokens / 4], for four neighbours at once: of equal tokens those with lower ids come before.
    """
    needed, needed_id, value, token = proposal
    FOURS: tl.constexpr = quarters[0].shape[0]
    four = tl.arange(0, FOURS)
    least = tl.where(four < needed_id // 4 - part * FOURS, needed, value_of(order_of(needed) + 1))
    own_least = tl.where(four < token // 4 - part * FOURS, value, value_of(order_of(value) + 1))
    return least, own_least


@triton.jit
def _with_those_from(least, values, mass, sum):
    """Adds what tokens from a value on weigh: two instructions, where a choice and a sum are three."""
    return tl.fma((values >= least).to(tl.float32), mass, sum)


@triton.jit
def _fixed_of_threads(mass, PER: tl.constexpr):
    """int64 [_THREADS]: of `_of_threads`."""
    return (_of_threads(mass, PER) * FIXED_POINT).to(tl.int64)


@triton.jit
def _of_threads(x, PER: tl.constexpr):
    """[_THREADS]: sums of what each thread of 8 warps has of a block, PER neighbours at a time."""
    return tl.sum(tl.sum(x.reshape(x.shape[0] // (_THREADS * PER), _THREADS, PER), 2), 0)


@triton.jit
def _equals_before(rows, row, proposal, row_max, scale):
    """int64, twice: mass of equal tokens before the one that a proposal needs, and number of those before its own.

    Of the four neighbours that a token is one of.
    """
    needed, needed_id, value, token = proposal
    place = tl.arange(0, 4)
    ids, own_ids = needed_id // 4 * 4 + place, token // 4 * 4 + place
    x, own_x = load_values(rows, row, ids, ids < needed_id), load_values(rows, row, own_ids, own_ids < token)
    mass = tl.where((x == needed) & (ids < needed_id), mass_of_tokens(x, row_max, scale), 0.0)
    return fixed_sum_of_masses(mass), tl.sum(((own_x == value) & (own_ids < token)).to(tl.int64))


@triton.jit
def _add(counts, number, before, rank, proposal, equals, begin, stop, TILES: tl.constexpr):
    """Adds what parts say of a proposal to its row's counts; equals: of `_equals_before`, for who reads these."""
    _needed, needed_id, _value, token = proposal
    own = needed_id // (TILES * TILE)
    before += tl.where((own >= begin) & (own < stop), equals[0], 0)
    own = token // (TILES * TILE)
    rank += tl.where((own >= begin) & (own < stop), equals[1], 0)
    tl.atomic_add(counts + BEFORE + number, before, sem="relaxed")
    tl.atomic_add(counts + RANK + number, rank, sem="relaxed")


@triton.jit
def load_part(rows, row, part, stop, TILES: tl.constexpr):
    """Values of a part [TILES 128], none from `stop` on."""
    first, end = part * (TILES * TILE), tl.minimum(rows.vocab_size, stop * (TILES * TILE))
    return load_stretch(rows, row, first, end, TILES * TILE)
