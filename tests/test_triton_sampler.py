"""The stateful sampler on the GPU backend's own tables: compiled where there is a GPU, else interpreted."""

import os

import numpy as np
import pytest
import torch

# Read when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from triton.runtime.errors import InterpreterError

from drawlot import InputError, LogitsRows, RowStatus, Sampler, SamplingParams
from tests import edit_mutants
from tests.kernel_mutant import KernelMutant
from tests.sampler_pair import DEVICE, INTERPRETED, Pair, V, few_tokens, rows_of
from tests.without_gpu import counted

# The interpreter computes in NumPy, which warns where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

REQUESTS = (
    {"seed": 1, "repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": -0.4, "logprobs": 9},
    {"seed": 2, "logit_bias": {2: 1.5, 7: -3.0}, "top_k": 4, "logprobs": 5},
    {"temperature": 0.0, "frequency_penalty": 2.0, "logprobs": 3},
    {"seed": 3, "allowed_token_ids": [1, 2, 5, 8], "presence_penalty": 1.0},
    {"seed": 4, "min_tokens": 4, "max_tokens": 9, "stop_token_ids": [1, 2, 3], "logprob_token_ids": [9, 3, 200]},
    {"seed": 5, "min_p": 0.05},
    {"seed": 6, "top_p": 0.9, "repetition_penalty": 0.5, "logit_bias": {4: 2.0}, "logprobs": 9},
)
BAD_WORDS = ((), ([5],), ([1, 2], [2, 1, 3]), (), ([2, 2], [6, 7, 8, 9, 1]), ([3],), ([1, 1],))


def take_steps(mode: str) -> None:
    """Steps of requests that come and go, by both."""
    rng = np.random.default_rng(1)
    pair = Pair(9, mode)
    alive: dict[int, int] = {}  # row: position
    for step in range(10):
        if step < 7:
            params = SamplingParams(**REQUESTS[step])
            prompt = rng.integers(0, 10, 3 + step).tolist()
            pair.add(8 - step, params, prompt, [2, 1], BAD_WORDS[step])
            alive[8 - step] = len(prompt) + 2
        elif step == 7:
            for row in (8, 4):
                pair.remove(row)
                del alive[row]
            pair.add(4, SamplingParams(seed=9, frequency_penalty=1.0, logprobs=0), [3])  # in a freed row
            pair.add(8, SamplingParams(seed=10, logprobs=9), [3])  # edits nothing
            alive[4] = alive[8] = 1
        requests = rng.permutation([*alive, -1]).tolist()
        drafts = [rng.integers(0, 10, rng.integers(0, 3) if step % 3 == 2 else 0).tolist() for _ in requests]
        rows = rows_of(requests, [alive.get(row, 0) for row in requests], drafts)
        out = pair.draw(few_tokens(rng, len(rows.positions)), rows)
        # Of each request's rows the first ones are emitted, whatever the drafts.
        emitted = torch.full((len(requests), 3), -1)
        num_sampled = []
        for i, row in enumerate(requests):
            first, count = int(rows.cu_num_logits[i]), 1 + len(drafts[i])
            emitted[i, :count] = out.token_ids[first : first + count]
            num_sampled.append(int(rng.integers(1, count + 1)) if row >= 0 else 0)
            if row >= 0:
                alive[row] += num_sampled[-1]
        pair.commit(requests, emitted, num_sampled)


# Columns of processed logprobs show what edits did to every likely token, ranks of raw ones what they did not.
MODES = ("processed_logprobs", "raw_logprobs")


@pytest.mark.parametrize("mode", MODES)
def test_steps_of_requests_that_come_and_go(mode: str) -> None:
    take_steps(mode)


@INTERPRETED
@pytest.mark.parametrize("mutant", edit_mutants.ALL, ids=lambda mutant: mutant.name)
def test_wrong_edits_are_seen(mutant: KernelMutant) -> None:
    def run() -> None:
        list(map(take_steps, MODES))
        edit_tokens_anywhere()

    with mutant.planted(), pytest.raises(AssertionError):
        run()


def edit_tokens_anywhere() -> None:
    """Edits that decide alone what is best, of every token or of a few that lie apart."""
    rng = np.random.default_rng(5)
    pair = Pair(4, "processed_logprobs")
    for row, step in enumerate((1, 7, 31, 128)):
        ids = range(row, V, step)
        bias = dict(zip(ids, rng.normal(0, 30, len(ids)).tolist()))
        pair.add(row, SamplingParams(temperature=0.0, logit_bias=bias, logprobs=9), [1])
    logits = torch.from_numpy(rng.normal(0, 1, (4, V)).astype(np.float32))
    # A thread has twice as many tokens of half the width.
    for dtype in (torch.float32, torch.bfloat16):
        pair.draw(logits.to(dtype), rows_of(range(4), [1] * 4))


def test_edits_of_tokens_anywhere() -> None:
    edit_tokens_anywhere()


def draw_from_lists(mode: str) -> None:
    """Rows that short lists cut.

    More top tokens than the list has, given ids, few top tokens, and a token whose raw rank other tiles tell, of which
    edits have lowered the best.
    """
    pair, ids = Pair(4, mode), [5, 150, 280]
    pair.add(0, SamplingParams(seed=1, top_k=2, logprobs=20), [1])
    pair.add(1, SamplingParams(seed=2, top_k=3, logprob_token_ids=[9, 3, 200]), [1])
    pair.add(2, SamplingParams(seed=3, top_k=5, logprobs=4), [1])
    pair.add(
        3,
        SamplingParams(seed=4, temperature=0.1, top_k=3, logprobs=2, logit_bias=dict(zip(ids, (2.0, -100.0, -100.0)))),
        [1],
    )
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(5))
    logits[3, ids] = torch.tensor([5.0, 5.5, 10.0])
    pair.draw(logits, rows_of(range(4), [1] * 4))


@pytest.mark.parametrize("mode", MODES)
def test_columns_that_lists_tell(mode: str) -> None:
    draw_from_lists(mode)


@INTERPRETED
@pytest.mark.parametrize("mutant", edit_mutants.OF_LISTS, ids=lambda mutant: mutant.name)
def test_wrong_columns_of_lists_are_seen(mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises((AssertionError, InterpreterError)):
        list(map(draw_from_lists, MODES))


LEAVES_ALL = KernelMutant(
    "leaves all", edit_mutants.ranks.count_or_leave_rank, "if total <= _FEW_TO_COUNT:", "if total < 0:"
)


@INTERPRETED
def test_a_raw_rank_that_takes_long_is_counted_by_all() -> None:
    with LEAVES_ALL.planted():
        draw_from_lists("raw_logprobs")
        take_steps("raw_logprobs")


@INTERPRETED
def test_wrong_raw_ranks_counted_by_all_are_seen() -> None:
    with LEAVES_ALL.planted(), edit_mutants.RANKED_BY_ALL.planted(), pytest.raises((AssertionError, InterpreterError)):
        take_steps("raw_logprobs")


def tokens_after(draft: int) -> list[int]:
    """What the two rows of a request draw, the later one after a draft; its tables end where their memory does."""
    sampler = Sampler(4, V, device=DEVICE, backend="triton")
    for row in range(4):
        sampler.add_request(row, SamplingParams(seed=1, repetition_penalty=3.0), [1, 2, 3])
    logits = few_tokens(np.random.default_rng(2), 2).to(DEVICE)
    return sampler(logits, rows_of([3], [3], [[draft]])).token_ids.tolist()


def test_a_draft_outside_of_the_vocabulary_edits_nothing() -> None:
    assert tokens_after(V + 10) == tokens_after(-1)


@INTERPRETED
def test_values_past_the_vocabulary_are_seen() -> None:
    inside = "(left != 0) & (ids < rows.vocab_size)"
    mutant = KernelMutant("past the vocabulary", edit_mutants.edit_kernels.load_next, inside, "left != 0")
    with mutant.planted(), pytest.raises(InterpreterError, match="OutOfBounds"):
        tokens_after(V + 10)


def draw_edited_rows_by_bounds() -> None:
    """Edited rows with top_k and raw logprobs, whose raw values alone the scan sums: bad ones, and some read whole.

    And rows without top_k, of which more tiles race than a list holds.
    """
    pair = Pair(3)
    for row, penalty in enumerate((1e-30, 1e-30, 3.0)):
        pair.add(row, SamplingParams(seed=row, top_k=5, repetition_penalty=penalty, logprobs=0), [5])
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(5))
    logits[0, 5], logits[1, 5] = 1e10, -1.0  # the penalty makes it +inf, or nearly 0
    logits[2, 200] = torch.nan
    out = pair.draw(logits, rows_of(range(3), [1] * 3))
    assert out.status.tolist() == [RowStatus.NONFINITE, 0, RowStatus.NONFINITE]

    # Tiles that weigh most have lower maxima than most others, of which more are there than are read at a time.
    n, num_tiles = 12, 130
    pair = Pair(n, vocab_size=128 * num_tiles)
    for row in range(n):
        top_k = 1585 if row < 6 else 0
        pair.add(row, SamplingParams(seed=row % 6, top_k=top_k, repetition_penalty=3.0, logprobs=0), [5])
    tiles = torch.full((n, num_tiles, 128), -9.0)
    tiles[:, :85, 7], tiles[:, 85:100, :100] = 3.0, 0.0
    pair.draw(tiles.flatten(1), rows_of(range(n), [1] * n))


def test_edited_rows_by_bounds() -> None:
    draw_edited_rows_by_bounds()


@INTERPRETED
@pytest.mark.parametrize("mutant", edit_mutants.OF_BOUNDS, ids=lambda mutant: mutant.name)
def test_wrong_bounds_are_seen(mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises(AssertionError):
        draw_edited_rows_by_bounds()


def test_raw_logprobs_know_nothing_of_edits() -> None:
    pair = Pair(7)
    for row, asked in enumerate(REQUESTS):
        pair.add(row, SamplingParams(**asked), [1, 2, 2], [3, 3], BAD_WORDS[row])
    pair.draw(few_tokens(np.random.default_rng(3), 7), rows_of(range(7), [5] * 7))


def test_edits_meet_a_bitmask_and_bad_rows() -> None:
    rng = np.random.default_rng(2)
    pair = Pair(4)
    pair.add(0, SamplingParams(seed=1, allowed_token_ids=[1, 2, 3], logprobs=2), [1])
    pair.add(1, SamplingParams(seed=2, min_tokens=2, stop_token_ids=[0, 1, 2, 3, 4]), [1])
    pair.add(2, SamplingParams(seed=3, repetition_penalty=1e-30), [5])
    pair.add(3, SamplingParams(seed=4, logit_bias={6: 5.0}), [1])
    logits = few_tokens(rng, 4)
    logits[2, 5] = 1e10  # the penalty makes it +inf
    logits[3, 299] = torch.nan  # masked, and yet no number
    bitmask = torch.zeros(4, -(-V // 32), dtype=torch.int32)
    bitmask[:, 0] = 0b11110
    out = pair.draw(logits, rows_of(range(4), [1, 1, 1, 1]), bitmask)
    assert out.status.tolist() == [0, RowStatus.EMPTY_SUPPORT, 0, RowStatus.NONFINITE]
    assert pair.draw(logits, rows_of(range(4), [1, 1, 1, 1])).status.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("params", "is_other"),
    [
        ({"top_k": 128, "top_p": 0.9, "logprobs": 0}, False),
        ({"temperature": 0.0, "logprobs": 0}, False),
        ({}, False),
        ({"top_k": 129}, True),
        ({"top_p": 0.9}, True),
        ({"min_p": 0.1}, True),
        ({"logprobs": 0}, True),
    ],
)
def test_a_captured_step_depends_on_whether_rows_may_be_read_whole(params: dict[str, float], *, is_other: bool) -> None:
    sampler = Sampler(2, V, device=DEVICE, backend="triton")
    sampler.add_request(0, SamplingParams(top_k=5, logprobs=0), [1])
    before = sampler.capture_key
    sampler.add_request(1, SamplingParams(**params), [1])
    assert (sampler.capture_key != before) == is_other
    sampler.remove_request(1)
    assert sampler.capture_key == before


def test_the_last_of_several_staged_writes_counts() -> None:
    pair = Pair(200)
    for row in range(200):  # more than one program writes
        pair.add(row, SamplingParams(temperature=0, logit_bias={row: 9.0}), [1])
    for row in (3, 150):
        pair.remove(row)
    pair.add(150, SamplingParams(temperature=0), [1])
    tokens = pair.draw(torch.zeros(4, V), rows_of([199, 150, 0, 128], [1] * 4)).token_ids
    assert tokens.tolist() == [199, 0, 0, 128]


def test_a_slot_forgets_its_request() -> None:
    pair = Pair(3, "processed_logprobs")
    params = SamplingParams(seed=1, frequency_penalty=0.5, logprobs=9)
    for row in (2, 1):
        pair.add(row, params, [])
    pair.commit([1], torch.tensor([[4, 4, 4]]), [3])
    pair.remove(1)
    pair.add(0, params, [])
    pair.commit([0], torch.tensor([[4]]), [1])
    # What is emitted in a row that is free by now goes nowhere.
    pair.commit([1], torch.tensor([[4]]), [1])
    pair.draw(few_tokens(np.random.default_rng(4), 2), rows_of([0, 2], [1, 0]))


def test_stop_ids_may_be_drawn_from_the_first_position_on() -> None:
    pair = Pair(1)
    pair.add(0, SamplingParams(temperature=0, min_tokens=3, stop_token_ids=[7], max_tokens=9), [1, 2])
    logits = torch.zeros(1, V)
    logits[0, 7] = 1
    drawn = [pair.draw(logits, rows_of([0], [position])).token_ids.item() for position in (2, 4, 5)]
    assert drawn == [0, 0, 7]


def test_drafts_and_output_together_make_a_bad_word() -> None:
    pair = Pair(1)
    pair.add(0, SamplingParams(temperature=0), [8], [9, 1], bad=[[1, 2, 3, 4], [2, 5], [9, 1, 6]])
    logits = torch.zeros(4, V)
    for row, token in enumerate((6, 5, 4, 4)):
        logits[row, token] = 1
    # Each of the words has its row; the last row has the likeliest token of the one before, which is free again.
    assert pair.draw(logits, rows_of([0], [3], [[2, 3, 2]])).token_ids.tolist() == [0, 0, 0, 4]
    assert pair.draw(logits[:1], rows_of([0], [3])).token_ids.tolist() == [0]
    pair.commit([0], torch.tensor([[3, 7]]), [1])
    # In the same row, what was banned in the step before no longer is.
    assert pair.draw(logits[:1], rows_of([0], [4])).token_ids.tolist() == [6]


def test_a_longer_bad_word_leaves_the_others_their_tails() -> None:
    pair = Pair(2)
    greedy = SamplingParams(temperature=0)
    logits = torch.zeros(1, V)
    logits[0, 9], logits[0, 4] = 2, 1
    pair.add(0, greedy, [1], [7], bad=[[7, 8, 9]])
    pair.commit([0], torch.tensor([[8, 300, -1]]), [1])
    pair.add(1, greedy, [1], [2, 3, 4, 5, 6], bad=[[3, 4, 5, 6, 9], [6, 4]])
    both = pair.draw(logits.expand(2, -1), rows_of([0, 1], [3, 6]))
    assert both.token_ids.tolist() == [4, 0]


def test_steps_reuse_memory_and_more_rows_than_requests_make_room() -> None:
    sampler = Sampler(2, V, device=DEVICE, backend="triton")
    sampler.add_request(0, SamplingParams(temperature=0, logprobs=2), [1], bad_words_token_ids=[[1, 2]])
    logits = torch.randn(5, V, device=DEVICE)
    one, again = (sampler(logits[:1], rows_of([0], [1])) for _ in range(2))
    assert one.token_ids.data_ptr() == again.token_ids.data_ptr()
    assert one.logprobs.logprobs.data_ptr() == again.logprobs.logprobs.data_ptr()
    key = sampler.capture_key
    out = sampler(logits, rows_of([0], [1], [[1, 2, 3, 4]]))
    assert out.token_ids.shape == (5,)
    assert out.logprobs.logprobs.shape == (5, 3)
    assert sampler.capture_key != key, "memory moved"
    nothing = LogitsRows(*(field[:0] for field in rows_of([0], [1])[:6]))
    assert sampler(logits[:0], nothing).token_ids.shape == (0,)


def test_kernels_are_given_integers_of_64_bits() -> None:
    """A template takes the place of a tensor alone: of which type it is makes no difference."""
    pair = Pair(2)
    pair.add(1, SamplingParams(seed=1, repetition_penalty=1.5), [3, 4])
    rows = rows_of([1, 1], [2, 3])
    narrow = rows._replace(**{name: getattr(rows, name).to(torch.int32) for name in rows._fields[:5]})
    steps = pair.triton._steps
    states, edits = steps._packed_states(narrow, 2).argument(), steps._edits.edits_of(2, narrow).argument()
    types = {tensor.dtype for tensor in (states.index, states.positions, *edits[1:])}
    assert types == {torch.int64}
    logits = torch.randn(2, V)
    drawn = pair.triton(logits.to(DEVICE), narrow).token_ids.tolist()
    assert drawn == pair.draw(logits, rows).token_ids.tolist()


def test_what_live_requests_ask_for_is_the_key_of_a_capture() -> None:
    sampler = Sampler(4, V, device=DEVICE, backend="triton")
    keys = [sampler.capture_key]
    for row, asked in enumerate(({}, {"logprobs": 2}, {"presence_penalty": 1.0})):
        sampler.add_request(row, SamplingParams(**asked), [1])
        keys.append(sampler.capture_key)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    sampler.remove_request(2)
    assert sampler.capture_key == keys[2]
    sampler.remove_request(1)
    assert sampler.capture_key == keys[0]
    assert Sampler(4, V, backend="torch").capture_key is None


def test_columns_are_as_many_as_the_requests_alive_want() -> None:
    sampler, keys = Sampler(4, V, device=DEVICE, backend="triton"), []
    for row, asked in enumerate((0, 2, 2, 5)):
        sampler.add_request(row, SamplingParams(logprobs=asked), [1])
        keys.append(sampler.capture_key)
    zero, two, same, five = keys
    assert two == same
    assert len({zero, two, five}) == 3
    for row, left in ((1, five), (3, two), (2, zero)):
        sampler.remove_request(row)
        assert sampler.capture_key == left


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s(torch.zeros(2, V, device=DEVICE), rows_of([0], [1])), "every column must be [2]"),
        (lambda s: s(torch.zeros(1, V, device="meta"), rows_of([0], [1])), "logits: must lie on"),
        (lambda s: s.warm_up(torch.zeros(1, V)), "comes before the first request; 1 are alive"),
    ],
)
def test_misuse_is_named(call, message: str) -> None:
    sampler = Sampler(2, V, device=DEVICE, backend="triton")
    sampler.add_request(0, SamplingParams(logit_bias={1: 1.0}), [1])
    with pytest.raises(InputError) as error:
        call(sampler)
    assert message in str(error.value)


COMPILATIONS = """
V = 1000
words = -(-V // 32)
sampler = Sampler(64, V, backend="triton")
logits, bitmask = torch.zeros(80, V, dtype=torch.bfloat16), torch.zeros(80, words, dtype=torch.int32)
sampler.warm_up(logits, bitmask)
warm = len(compiled)

mixes = [{}, {"logprobs": 0}, {"logprobs": 5}, {"logprob_token_ids": [1, 2]}, {"repetition_penalty": 2.0},
         {"logit_bias": {1: 1.0}}, {"allowed_token_ids": [1]},
         {"top_k": 5, "top_p": 0.5, "min_p": 0.1, "temperature": 0.7}, {"logprobs": 64}]
# Numbers that Triton would tell apart: 1, multiples of 16, and views at every offset.
memory = [torch.zeros(200, dtype=torch.int64) for _ in range(4)]
for i in range(60):
    sampler.add_request(i, SamplingParams(**mixes[i % len(mixes)]), [1], bad_words_token_ids=[[1, 2, 3]] * (i % 5 == 4))
    n = [1, 2, 15, 16, 17, 32, 64, 80][i % 8]
    columns = [part[i % 7 : i % 7 + n] for part in memory]
    first = i % (81 - n)
    rows = LogitsRows(columns[0], *columns, torch.zeros(n + 1, dtype=torch.int32))
    sampler(logits[first : first + n], rows, None if i % 3 else bitmask[first : first + n])
    sampler.commit(columns[0], torch.zeros(n, 1 + i % 3, dtype=torch.int64), columns[1])
    if i % 4 == 3:
        sampler.remove_request(i)
print(warm, len(compiled) - warm, len(launched), compiled_before[0])
"""


def test_nothing_is_compiled_after_the_warm_up() -> None:
    warm, later, launched, before = counted(COMPILATIONS)
    # The scan in eight forms, whole rows in twelve, the finish in as many for few, more and many rows; some of
    # these once more for few rows that are edited; bad words, commit and writes.
    assert 66 < warm < 80
    assert later == 0
    assert launched > 200
    # At once, by all processors, before anything runs.
    assert before == warm
