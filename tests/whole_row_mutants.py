"""Wrong kernels for rows that no short list can cut, and the world of `test_triton_whole_rows` that shows each."""

from drawlot.kernels.triton import (
    cut_in_list,
    cut_race,
    lazy_race,
    listing,
    one_read,
    proposal,
    ranges,
    ranks,
    slow_cut,
    weigh_proposals,
    whole_row,
    whole_rows,
)
from tests.kernel_mutant import KernelMutant

_BOTH = "top-k and top-p"
_MISSED, _NO_ROOM, _BORDERS = "the cut lies elsewhere: ", "no room for the list: ", "borders that are tokens: "
_LINE, _ZEROS = "many equal: min-p and half", "many equal: top-p"
_EQUAL, _FAR = "many equal: half", "a low that is too high: half"
_BOTTOM, _SAME = "a low that is very low: half", "few tokens, all equal: half"
_AS_THEY_ARE = "tl.load(whole.ranges + row * NUM_RANGES + tl.arange(0, NUM_RANGES))"
OF_READING = [
    KernelMutant(
        "mass from low on", whole_rows._weigh, "tl.where(is_above, mass", "tl.where(values >= low, mass", "top-k"
    ),
    KernelMutant(
        "number from low on",
        whole_rows._weigh,
        "_of_threads(is_above.to",
        "_of_threads((values >= low).to",
        "min-p and top-k",
    ),
    KernelMutant(
        "mass below the line",
        whole_rows._weigh,
        "tl.where(values >= line",
        "tl.where(values >= -LARGEST",
        "min-p and top-p",
    ),
    KernelMutant(
        "masses at T = 1",
        whole_rows._weigh,
        "mass_of(values, row_max, scale)",
        "mass_of(values, row_max, 1.0)",
        "min-p",
    ),
    KernelMutant(
        "min_p forgotten", whole_rows._weigh, "if min_p > 0:\n        line", "if min_p > 1:\n        line", "min-p"
    ),
    KernelMutant(
        "another range listed", ranges.range_of_cut, "place, NUM_RANGES)) - 1", "place, NUM_RANGES)) - 2", "top-k"
    ),
    KernelMutant(
        "nothing is elsewhere", ranges.range_of_cut, "tl.where(holds, reached, -1)", "reached", _MISSED + "top-p"
    ),
    KernelMutant("nothing reached", ranges.range_of_cut, "tl.max(tl.where(before, up_to, 0))", "above", "top-p"),
    KernelMutant("masses for counts", ranges.add_to_ranges, "filters[0] > 0, 1,", "filters[0] > 0, 2,", "top-k"),
    KernelMutant(
        "mass reached forgotten", whole_rows._list, "tl.sum(mass_reached)", "0 * tl.sum(mass_reached)", "top-k"
    ),
    KernelMutant("mass of the range, too", ranges.mass_between, "> last", ">= last - 1", "top-k"),
    KernelMutant("an infinity lost", ranges._is_in, "place <= last", "place < last", _BOTH),
    KernelMutant("a neighbour's id", ranges.append_range, "ids + 3, kept3", "ids + 2, kept3", "half"),
    KernelMutant("one of two lost", ranges.append_range, "at + kept0 + kept1, x2", "at + kept0, x2", _BOTH),
    KernelMutant(
        "high forgotten",
        whole_rows._weigh,
        "_of_threads(is_above.to",
        "_of_threads((values > high).to",
        _BORDERS + "top-k",
    ),
    KernelMutant("one past the room", ranges._put, "(at < ROOM)", "(at <= ROOM)", _NO_ROOM + _BOTH),
    KernelMutant("one past the short list's room", listing._put_best, "(at < ROOM)", "(at <= ROOM)", _BOTH),
]
OF_THE_CUT = [
    KernelMutant("number above forgotten", cut_in_list.cut_in_list, "top_k - num_above", "top_k", "top-k"),
    KernelMutant("p of all", cut_in_list.cut_in_list, "tl.where(top_p < 1, share, total)", "total", _BOTH),
    KernelMutant("ranges above forgotten", cut_in_list.cut_in_list, "above += tl.max(", "above += 0 * tl.max(", _BOTH),
    KernelMutant("a range too far", cut_in_list.cut_in_list, "up_to < need", "up_to <= need", "all but three"),
    KernelMutant("another range", cut_in_list.cut_in_list, "place, NUM_RANGES)) - 1", "place, NUM_RANGES)) - 2", _BOTH),
    KernelMutant("more than few", cut_in_list.cut_in_list, "num <= _FEW_LISTED", "num <= _LISTED_BLOCK", _BOTH),
    KernelMutant("ranges not cleared", cut_in_list._clear, "tl.zeros([NUM_RANGES], tl.int64)", _AS_THEY_ARE, _BOTH),
    KernelMutant("the last of a range left out", cut_in_list._take, "(key <= last)", "(key < last)", _BOTH),
    KernelMutant("ends of no range", cut_in_list._ends, "tl.maximum(highest,", "tl.minimum(highest,", _BOTH),
    KernelMutant("weightless", cut_in_list._mass_of, ".to(tl.int64), 1)", ".to(tl.int64), 0)", "all but three"),
    KernelMutant("one too many", cut_in_list._cut_of_few, "- in_order < need)", "- in_order <= need)", _BOTH),
    KernelMutant("one too few", cut_in_list._cut_of_few, "== num_kept - 1", "== num_kept - 2", _BOTH),
    KernelMutant("the id before", cut_in_list._cut_of_few, "num_kept - 1, key,", "num_kept - 1, key + 1,", _BOTH),
    KernelMutant(
        "holds in any case",
        whole_row.finish_whole_row,
        "is_cut, mass = holds &",
        "is_cut, mass = (row >= 0) &",
        _MISSED + "top-k",
    ),
    KernelMutant("room for all", whole_row.finish_whole_row, "(listed <= ROOM)", "(listed >= 0)", _NO_ROOM + _BOTH),
    KernelMutant(
        "mass of the list forgotten",
        whole_row.finish_whole_row,
        "mass = of_fixed(mass)\n",
        "mass = of_fixed(mass_above)\n",
        _BOTH,
    ),
    KernelMutant(
        "a hundredth is rounding", whole_row.finish_whole_row, "_ROUNDING * all_mass)", "1e-2 * all_mass)", "nearly all"
    ),
]
OF_THE_SLOW_CUT = [
    KernelMutant(
        "the equal one before", slow_cut._id_of_equal, "(before <= count)", "(before < count)", _MISSED + "top-p"
    ),
    KernelMutant(
        "count from the top", slow_cut.cut_at_count, "count - above_high, RAW", "count, RAW", _NO_ROOM + _BOTH
    ),
    KernelMutant("a little less mass", slow_cut._cut_at_mass, "tl.ceil((target", "tl.floor((target", _NO_ROOM + _BOTH),
    KernelMutant(
        "without min_p", slow_cut.slow_cut, "tl.maximum(line, cut_order)", "cut_order", _MISSED + "min-p and top-k"
    ),
    KernelMutant("weighed without the last", slow_cut._weights, "(ids <= cut_id)", "(ids < cut_id)", _MISSED + "top-p"),
]
OF_THE_DRAW = [
    KernelMutant("bounds without noise", cut_race.bounds_of, "shift + noise, MINUS", "shift, MINUS", "top-p"),
    KernelMutant("bounds at T = 1", cut_race.bounds_of, "if at_one:", "if at_one & (T < 0):", "nearly all, warm"),
    KernelMutant(
        "a tile of one token",
        cut_race.bounds_of,
        "s * log_sums + (1 - s) * _LOG_TILE",
        "s * log_sums",
        "nearly all, warm",
    ),
    KernelMutant(
        "the last one's tile not read", cut_race.bounds_of, "(maxima >= cut_value)", "(maxima > cut_value)", _BOTH
    ),
    KernelMutant("summed without the last", cut_race.is_kept, "(ids <= cut_id)", "(ids < cut_id)", _BOTH),
    KernelMutant(
        "summed without a cut",
        cut_race.kept_tiles,
        "tl.where(is_kept(x, ids, cut_value, cut_id), x, MINUS_INF)",
        "x",
        "min-p and top-p",
    ),
    KernelMutant("another stream", cut_race._keys_of_kept, "key[1], TARGET_TILE", "key[1], TARGET_TILE + 1", _BOTH),
    KernelMutant("another seed", cut_race._keys_of_kept, "gumbel(tile, key[0]", "gumbel(tile, key[0] + 1", _BOTH),
    KernelMutant(
        "tiles read once",
        lazy_race.race_lazily,
        "(highest + _SUM_SLACK > best_key)",
        "(highest > best_key + 9)",
        "top-k",
    ),
    KernelMutant(
        "the second never read",
        lazy_race.race_lazily,
        "own, next_own = next_own, own",
        "own, next_own = own, next_own",
        "top-k",
    ),
    KernelMutant(
        "equals before it forgotten", ranks.count_ranks, "tl.where(tile < own_tile", "tl.where(tile < 0", _BOTH
    ),
    KernelMutant("its own tile not read", ranks.count_ranks, "(maxima >= own_x)", "(maxima > own_x)", _BOTH),
]
OF_PROPOSALS = [
    KernelMutant("enough from low on", one_read._settle, "holds & (number < num)", "(number < num)", _FAR),
    KernelMutant("low enough in any case", one_read._settle, "(low <= line) |", "(row >= 0) |", _FAR),
    KernelMutant("the last in any case", one_read._settle, "(before < surely_less)", "(num > 0)", _BOTTOM),
    KernelMutant(
        "the last that is right", one_read._settle, "before >= surely_enough", "before < surely_less", _BOTTOM
    ),
    KernelMutant("the first one's rank", one_read._settle, "tl.where(is_right, other_rank, rank)", "rank", _BOTTOM),
    KernelMutant(
        "another one's mass", weigh_proposals.weigh, "_add(counts, 1, sum_two", "_add(counts, 0, sum_two", _BOTTOM
    ),
    KernelMutant(
        "two ranks as one", weigh_proposals.weigh, "sum_one, ranks_sum & 0xFFFFFFFF", "sum_one, ranks_sum", _BOTTOM
    ),
    KernelMutant(
        "the second one's rank", weigh_proposals.weigh, "ranks_sum >> 32, two", "ranks_sum & 0xFFFF, two", _BOTTOM
    ),
    KernelMutant(
        "the third one's mass", weigh_proposals.weigh, "_add(counts, 2, sum_three", "_add(counts, 2, sum_two", _BOTTOM
    ),
    KernelMutant(
        "the fourth one's rank", weigh_proposals.weigh, "ranks_sum >> 32, four", "ranks_sum & 0xFFFF, four", _BOTTOM
    ),
    KernelMutant("p of what min_p drops", one_read._settle, "if min_p > 0:", "if min_p > 1:", _LINE),
    KernelMutant(
        "equals before it forgotten",
        weigh_proposals._least_before,
        "four < token // 4 - part * FOURS",
        "four < -token",
        _EQUAL,
    ),
    KernelMutant(
        "equals after it counted",
        weigh_proposals._least_before,
        "value, value_of(order_of(value) + 1)",
        "value, value",
        _ZEROS,
    ),
    KernelMutant(
        "equal neighbours forgotten", weigh_proposals._equals_before, "(own_ids < token)).to", "(ids < 0)).to", _EQUAL
    ),
    KernelMutant(
        "weightless equals",
        weigh_proposals._least_before,
        "four < needed_id // 4 - part * FOURS",
        "four < -needed_id",
        _SAME,
    ),
    KernelMutant("what is likely is enough", proposal.propose, "- _KEY_SLACK <= rival", "+ 99 <= rival", _BOTTOM),
    KernelMutant("all but the winner dropped", proposal._last_needed, "- _KEY_SLACK > rival", "+ 99 > rival", _BOTTOM),
    KernelMutant("the winner dropped", proposal._last_needed, "(last != winner)", "(num > 0)", _BOTTOM),
    KernelMutant(
        "no rival",
        proposal._last_needed,
        "tl.maximum(tl.log(other_mass) + other_noise, third)",
        "third",
        _BOTTOM,
    ),
    KernelMutant(
        "no third",
        proposal._last_needed,
        "tl.maximum(tl.log(other_mass) + other_noise, third)",
        "tl.log(other_mass) + other_noise",
        _BOTTOM,
    ),
]
ALL = [*OF_READING, *OF_THE_CUT, *OF_THE_SLOW_CUT, *OF_THE_DRAW, *OF_PROPOSALS]
