"""From the scan's tiles to a token, one program a row, or two; what no short list decides is left to `whole_rows`."""

import triton
import triton.language as tl

from drawlot.kernels.triton.column_values import (
    fit_a_list,
    law_of_raw,
    num_top_of,
    put_column,
    put_first_column,
    put_result,
    result_of,
    wants_first,
)
from drawlot.kernels.triton.decided import BOTH_SHARES, ONE_SHARE, decide, decide_and_leave
from drawlot.kernels.triton.from_list import begin_list, draw_from_list, mass_for_top_p, may_hold, need_of
from drawlot.kernels.triton.listing import clear_list, survey, survey_beside
from drawlot.kernels.triton.lost_mass import load_lost, mass_left, reference_of
from drawlot.kernels.triton.lowered import load_penalties
from drawlot.kernels.triton.one_read import begin_counts
from drawlot.kernels.triton.pdl import wait_for_previous
from drawlot.kernels.triton.proposal import put_request
from drawlot.kernels.triton.race import race_of_tiles, store_noises
from drawlot.kernels.triton.ranks import ask_for_rank, count_or_leave_rank
from drawlot.kernels.triton.raw_mass import apart_by, log_row_mass, raw_apart, raw_law
from drawlot.kernels.triton.reduce import largest_of_two
from drawlot.kernels.triton.states import asked_of_scan, filters_of, noise_key, scale_of, scan_scale, temperature_of
from drawlot.kernels.triton.summary import (
    ALL_COLUMNS,
    COUNT,
    GREEDY,
    LISTED,
    NO_TOKEN,
    TILES,
    WHOLE,
    put,
    put_cut,
)
from drawlot.kernels.triton.sure_winner import look_again, race_in_any_tile, wins_surely
from drawlot.kernels.triton.tile_summary import GROUPS, group_of
from drawlot.kernels.triton.top_of_list import draws_without, put_own, put_top, put_top_aside, wants_a_list
from drawlot.kernels.triton.values import (
    GROUP,
    LAST_ID,
    MINUS_INF,
    MINUS_INF_ORDER,
    load_values,
    order_of,
    value_of,
)
from drawlot.kernels.triton.whole_row import begin_whole_row
from drawlot.outputs import RowStatus

_NONFINITE, _EMPTY = tl.constexpr(int(RowStatus.NONFINITE)), tl.constexpr(int(RowStatus.EMPTY_SUPPORT))
_SKIPPED = tl.constexpr(int(RowStatus.SKIPPED))
_NO_TOKEN = tl.constexpr(-1)
_EARLY_TILES = tl.constexpr(1024)
"""Of a row, at most, if what its raw logits have of tiles is loaded with the others"""


@triton.jit
def finish_kernel(
    rows,
    states,
    tiles,
    lists,
    lists_aside,
    whole,
    wanted,
    columns,
    all_columns,
    drawn,
    summary,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
    ASIDE: tl.constexpr,
    LOWERS: tl.constexpr,
    BY_MASS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Program: one row. T: power of two >= number of tiles; ROOM: tokens of a list; BLOCK: groups read at a time.

    columns: of rows with one column; None: all_columns, if there are any, which `whole_rows` fills where no list tells
    them. RAW, LOGITS: what they hold, as for `fill_columns`. ASIDE: there are as many programs before these, which tell
    top tokens that no draw needs, see `put_top_aside`. LOWERS, BY_MASS: as for `scan_kernel`. AT_ONCE: no two rows
    share a multiprocessor.
    """
    SHARES: tl.constexpr = ONE_SHARE if ASIDE else BOTH_SHARES
    row = tl.program_id(0).to(tl.int64)
    if ASIDE:
        num_rows = tl.num_programs(0) // 2
        if row < num_rows:
            put_top_aside(
                rows, states, tiles, lists_aside, wanted, all_columns, summary, row, LOGITS, T, ROOM, BLOCK, OVERLAP
            )
            return
        row -= num_rows
    tile = tl.arange(0, T)
    at = row * tiles.stride + tile
    exists = tile < tiles.num
    # What the scan has no part in, while it still runs.
    clear_list(lists, row, ROOM)
    state = tl.load(states.index + row)
    is_row = state >= 0
    state = tl.maximum(state, 0)
    temperature, key = temperature_of(states, state), noise_key(states, state, row)
    top_k, top_p, min_p = filters_of(states, state)
    filtered = (top_k > 0) | (top_p < 1) | (min_p > 0)
    scale = scan_scale(states, state)
    wants = is_row & False
    if wanted is not None:
        wants = is_row & (tl.load(wanted.wanted + state) != 0)
        if columns is not None:
            if wants == 0:
                put_column(columns, row, _NO_TOKEN, MINUS_INF, 0, row >= 0)
    num_top, unknown_rank, is_told, leaves = tl.zeros([], tl.int32), tl.zeros([], tl.int32), row < 0, row < 0
    if all_columns is not None:
        num_top = num_top_of(wanted, state, ROOM)
        is_told = (wants == 0) & fit_a_list(all_columns, ROOM)
        # Columns are left by rows whose token alone does not tell them all.
        leaves = (is_told | wants_first(all_columns, wants, num_top, ROOM)) == 0
        if is_told:
            put_first_column(all_columns, row, _NO_TOKEN, MINUS_INF, ROOM)
            tl.store(all_columns.ranks + row, 0)
            unknown_rank += ALL_COLUMNS
    HAS_BOUNDS: tl.constexpr = tiles.edit_bounds is not None and rows.edits_of is not None
    _, _, _, _, lowered, edit_slot = asked_of_scan(states, state)
    edit_slot = tl.where(is_row, edit_slot, -1)
    if not BY_MASS:
        lowered = lowered & (top_k > 0)
    has_bounds = ((wants | lowered) if LOWERS else wants) & (edit_slot >= 0)
    # Edits that are laid over rows before the scan are known by their rows alone.
    may_be_apart = wants & ((edit_slot >= 0) | (scale != 1.0) | (rows.edits is not None and rows.edits_of is None))
    # Few rows with top_p race over tiles. Where edited ones end last, these make their noise then.
    if ((filtered == 0) & (temperature != 0)) if BY_MASS else top_k <= 0:
        # To memory, lest all rows keep it in registers until few of them need it.
        store_noises(whole, row, tiles.num, key, T, WIDE)
    penalties = load_penalties(rows, edit_slot) if LOWERS else 0.0
    wait_for_previous(OVERLAP)
    maxima = tl.load(tiles.maxima + at, mask=exists, other=MINUS_INF)
    sums = tl.load(tiles.sums + at, mask=exists, other=0.0)
    best_groups = tl.load(tiles.best_groups + at, mask=exists, other=MINUS_INF_ORDER)
    bounds = tl.full([T], LAST_ID, tl.int32)
    if HAS_BOUNDS:
        own = tile < tl.where(has_bounds, tiles.num, 0)
        bounds = tl.load(tiles.edit_bounds + at, mask=own, other=MINUS_INF_ORDER)
    # Early, since all that is read of the row waits for it. The scan says nothing of skipped rows.
    kind = tl.zeros([], tl.int32)
    if rows.edits is not None:
        kind = tl.load(rows.edits.kind + row, mask=is_row, other=0)
    raw_maxima, raw_sums = maxima, sums
    # More are loaded where they are summed, since they would take registers until then.
    RAW_EARLY: tl.constexpr = tiles.raw_sums is not None and T <= _EARLY_TILES
    if RAW_EARLY:
        own = tile < tl.where(may_be_apart, tiles.num, 0)
        raw_maxima = tl.load(tiles.raw_maxima + at, mask=own, other=MINUS_INF)
        raw_sums = tl.load(tiles.raw_sums + at, mask=own, other=0.0)
        is_apart = wants & apart_by(scale, kind > 0)
        raw_maxima, raw_sums = tl.where(is_apart, raw_maxima, maxima), tl.where(is_apart, raw_sums, sums)
    edited, lows, lost = kind != 0, maxima, 0.0
    if BY_MASS:
        lost = load_lost(rows, row, lowered & (edit_slot >= 0) & (top_k <= 0))
    if LOWERS:
        lows = tl.where(kind < 0, value_of(bounds), maxima)
    if is_row == 0:
        put(drawn, summary, row, -1, _SKIPPED, NO_TOKEN, 0.0, 0.0)
        tl.store(summary.rank + row, unknown_rank)
        decide(tiles, leaves, SHARES, OVERLAP)
        return

    orders = order_of(maxima)
    # A bad tile is above all others.
    raw_highest, bound = tl.zeros([], tl.int32), tl.full([], LAST_ID, tl.int32)
    if RAW_EARLY:
        found, raw_highest, bound = survey_beside(lows, sums != sums, order_of(raw_maxima), bounds)
    else:
        found = survey(lows, sums != sums)
    highest, lowest, num_tiles, _, _ = found
    has_line = row >= 0
    if LOWERS:
        if (kind < 0) & (num_tiles == 0) & (highest != LAST_ID):
            # It may have tokens all the same.
            highest, has_line = order_of(tl.max(maxima)), row < 0
            num_tiles = (highest > MINUS_INF_ORDER).to(tl.int32)
    if (highest == LAST_ID) | (num_tiles == 0):
        put(drawn, summary, row, -1, tl.where(highest == LAST_ID, _NONFINITE, _EMPTY), NO_TOKEN, 0.0, 0.0)
        tl.store(summary.rank + row, unknown_rank)
        if columns is not None:
            put_column(columns, row, _NO_TOKEN, MINUS_INF, 0, row >= 0)
        decide(tiles, (all_columns is not None) & (is_told == 0), SHARES, OVERLAP)
        return

    row_max = value_of(highest)
    # A row whose filters keep everything draws as one without filters, to the bit: where its tokens fit, both list.
    reference = row_max
    if BY_MASS:
        if (kind < 0) & (top_k <= 0):
            reference = reference_of(row_max, lost)
    row_mass = mass_for_top_p(maxima, sums, reference, temperature, (top_k, top_p, min_p))
    may_list = may_hold(row_mass, (top_k, top_p, min_p), ROOM)
    if BY_MASS:
        if (kind < 0) & (top_k <= 0):
            row_mass, is_sharp = mass_left(row_mass, lost, reference, scale_of(temperature))
            may_list, has_line = row >= 0, has_line & is_sharp
    draws_from_list = (temperature != 0) & ((filtered & may_list) | (num_tiles <= ROOM)) & has_line
    # Edits move tokens of raw logits: their ranks are to be counted.
    is_known = (edited == 0) if RAW else is_row
    asks = wants & (is_known == 0)
    need, lists_top = need_of((top_k, top_p, min_p), T, AT_ONCE), row < 0
    if RAW and all_columns is not None:
        wants_top = wants_a_list(all_columns, wants, edited, num_top, ROOM)
        lists_top = wants_top & draws_without(temperature, filtered, num_tiles, ROOM)
        need = tl.where(lists_top, num_top, tl.where(wants_top, tl.maximum(need, num_top), need))
    lists_it = draws_from_list if ASIDE else draws_from_list | lists_top
    no_group, no_value = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK, GROUP], tl.float32)
    begun = found[0], num_tiles, num_tiles, no_group, no_value, no_group, no_value
    if lists_it:
        begun = begin_list(
            rows,
            None,
            row,
            kind,
            lists,
            (maxima, best_groups, lows),
            found,
            need,
            temperature,
            (top_k, top_p, min_p),
            T,
            ROOM,
            BLOCK,
            LOWERS,
        )
    # While tokens are being loaded. Who wants no logprobs goes on without it.
    raw_max, raw_log_mass = row_max, row_max
    if tiles.raw_sums is not None:
        if wants:
            if RAW_EARLY:
                raw_max = value_of(raw_highest)
                raw_log_mass = log_row_mass(raw_maxima, raw_sums, raw_max)
            else:
                is_apart = raw_apart(rows, scale, row)
                raw_max, raw_log_mass, raw_maxima = raw_law(tiles, at, exists, maxima, sums, row_max, is_apart)
                if has_bounds & (kind > 0):
                    bound = tl.max(bounds)
            tl.store(summary.floats + 2 * summary.num_rows + row, raw_max)
            tl.store(summary.floats + 3 * summary.num_rows + row, raw_log_mass)
    # Of these rows it is known before anything is drawn that nobody reads them again.
    is_sure = ((temperature == 0) & (asks == 0) & (lists_top == 0)) | ((filtered == 0) & (wants == 0))
    if is_sure:
        decide(tiles, leaves, SHARES, OVERLAP)
    raw_of_token, knows_raw, tells_rank = row_max, row < 0, row < 0
    done, token, keeps_list, mass = row < 0, tl.full([], -1, tl.int32), row < 0, tl.zeros([], tl.float32)
    if temperature == 0:
        best = tl.min(tl.where(orders == highest, tile * GROUPS + group_of(best_groups), LAST_ID))
        ids = best * GROUP + tl.arange(0, GROUP)
        token = tl.min(tl.where(load_values(rows, row, ids, ids >= 0) == row_max, ids, LAST_ID))
        put_cut(summary, row, MINUS_INF, -1)
        log_mass = log_row_mass(maxima, sums, row_max)
        put(drawn, summary, row, token, 0, GREEDY, row_max, log_mass)
        if (asks == 0) & (lists_top == 0):
            logprob = result_of(row_max, row_max, log_mass, temperature, RAW, LOGITS)
            put_result(columns, all_columns, summary, row, token, logprob, 1, wants, is_told, num_top, ROOM)
        done = row >= 0
    if draws_from_list:
        done, token, keeps, raw_of_token, tells_rank = draw_from_list(
            rows,
            lists,
            drawn,
            summary,
            row,
            kind,
            penalties,
            begun,
            row_max,
            temperature,
            (top_k, top_p, min_p),
            row_mass,
            reference,
            key,
            columns,
            all_columns,
            wants & is_known,
            num_top,
            is_told,
            asks,
            (asks == 0) & (is_sure == 0),
            tiles,
            raw_max,
            raw_log_mass,
            bound,
            RAW,
            LOGITS,
            WIDE,
            ROOM,
            BLOCK,
            SHARES,
            OVERLAP,
            LOWERS,
            BY_MASS,
            AT_ONCE,
        )
        knows_raw = done
        if RAW:
            if asks:
                # Where all threads are: behind more branches ptxas may come to it with a part of a warp.
                tl.debug_barrier()
        # Who asks for the cut has its rows read again.
        keeps_list = keeps & (RAW or (columns is None and all_columns is None))
    if (done == 0) & (keeps_list | (filtered == 0)):
        if BY_MASS:
            if filtered:
                store_noises(whole, row, tiles.num, key, T, WIDE)
        # Threads may have other tiles than those that they stored.
        tl.debug_barrier()
        noise = tl.load(whole.noises + row * T + tile, mask=exists, other=0.0)
        best, keys, mass = race_of_tiles(maxima, sums, row_max, temperature, noise, WIDE)
        token = race_in_any_tile(
            rows, row, kind, penalties, best, MINUS_INF_ORDER, row_max, temperature, key, WIDE, BY_MASS
        )
        if filtered:
            rival, own_noise = largest_of_two(
                tl.where(tile == best, MINUS_INF, keys), tl.where(tile == best, noise, MINUS_INF)
            )
            done, value, rank = wins_surely(lists, row, token, best, rival, own_noise, row_max, temperature, WIDE, ROOM)
            if done == 0:
                if BY_MASS:
                    row_mass *= tl.exp((reference - row_max) * scale_of(temperature))
                done, token, value, rank = look_again(
                    rows,
                    tiles,
                    lists,
                    row,
                    kind,
                    penalties,
                    keys,
                    row_mass,
                    top_p,
                    row_max,
                    temperature,
                    key,
                    WIDE,
                    ROOM,
                    BY_MASS,
                )
            if done:
                put(drawn, summary, row, token, 0, LISTED, row_max, 0.0)
                if asks == 0:
                    decide(tiles, leaves, SHARES, OVERLAP)
                    logprob = result_of(value, row_max, raw_log_mass, temperature, RAW, LOGITS)
                    put_result(columns, all_columns, summary, row, token, logprob, rank, wants, is_told, num_top, ROOM)
                if RAW:
                    tl.debug_barrier()
    has_columns, has_rank = row < 0, row < 0
    if RAW and all_columns is not None:
        if lists_top:
            if ASIDE:
                # All columns but the first are told by another program, which leaves them if it cannot.
                put_own(rows, all_columns, row, token, row_max, raw_log_mass, LOGITS)
                has_columns, has_rank = row >= 0, temperature == 0
                if has_rank:
                    tl.store(all_columns.ranks + row, 1)
            else:
                has_columns, has_rank = put_top(
                    rows,
                    lists,
                    all_columns,
                    summary,
                    row,
                    begun,
                    token,
                    row_max,
                    raw_log_mass,
                    num_top,
                    LOGITS,
                    ROOM,
                    BLOCK,
                )
            if done:
                if has_columns == 0:
                    tl.store(summary.rank + row, 1)
                decide(tiles, has_columns == 0, SHARES, OVERLAP)
    # Raw ranks of rows that are read again come with their tokens.
    asks_rank = wants & tl.where(done, asks & (tells_rank == 0), (filtered == 0) & (has_rank == 0))
    if done == 0:
        if filtered:
            slot = tl.atomic_add(tiles.control + COUNT, 1)
            begin_whole_row(whole, row, slot)
            begin_counts(whole, slot)
            asks_for = tl.where(wants, tl.where(is_known, 1, 2), 0)
            put_request(whole, slot, row, row_max, temperature, (top_k, top_p, min_p), key, asks_for)
            tl.store(summary.floats + row, row_max)
            tl.store(summary.rank + row, unknown_rank)
            tl.store(summary.path + row, WHOLE)
            tl.debug_barrier()
        else:
            put_cut(summary, row, MINUS_INF, -1)
            put(drawn, summary, row, token, 0, TILES, row_max, tl.log(mass))
            if has_columns == 0:
                tl.store(summary.rank + row, unknown_rank)
        if RAW == 0:
            if wants:
                ask_for_rank(tiles, whole, columns, summary, row)
        if has_rank:
            decide(tiles, False, SHARES, OVERLAP)
        elif (is_sure == 0) & ((asks_rank == 0) | (RAW == 0)):
            decide_and_leave(tiles, SHARES, OVERLAP)
    if RAW:
        if asks_rank:
            tl.debug_barrier()
            count_or_leave_rank(
                rows,
                tiles,
                whole,
                columns,
                all_columns,
                summary,
                row,
                token,
                raw_maxima,
                raw_of_token,
                knows_raw,
                law_of_raw(raw_max, raw_log_mass),
                num_top,
                has_columns,
                # Rows that have programs beside them have no filters, mostly.
                ASIDE,
                LOGITS,
                T,
                ROOM,
                SHARES,
                OVERLAP,
            )
