"""The noise contract: Philox and its counter bit for bit, and the two transforms against exact logarithms."""

import decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drawlot import rng
from drawlot.rng import Stream

# Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, output.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]

SEEDS = st.integers(-(2**63), 2**63 - 1)
POINTS = st.tuples(
    SEEDS,
    st.integers(0, 2**48 - 1),  # position
    st.sampled_from(Stream),
    st.integers(0, 2**31 - 1),  # token or tile id
    st.integers(0, 127),  # choice
    st.integers(0, 2**16 - 1),  # row
)


def as_numpy(number):
    return np.array([number & (2**64 - 1)], np.uint64)


def as_torch(number):
    return torch.from_numpy(as_numpy(number).view(np.int64))


def philox(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def philox_words(seed, position, stream, block, choice, row):
    counter = block, position % 2**32, position // 2**32 | row << 16, stream | choice << 8
    return philox(counter, (seed % 2**32, seed // 2**32 % 2**32))


def noise(point, convert, *, wide):
    seed, position, stream, token, choice, row = point
    at = (convert(part) for part in (token, seed, position))
    return np.asarray(rng.gumbel_noise(*at, stream, convert(choice), convert(row), wide=wide))


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
@pytest.mark.parametrize("convert", [as_numpy, as_torch])
def test_philox_gives_the_known_answers(counter, key, output, convert):
    counter, key, output = ([int(word, 16) for word in words.split()] for words in (counter, key, output))
    assert philox(counter, key) == tuple(output)
    drawn = rng.philox4x32(tuple(map(convert, counter)), tuple(map(convert, key)))
    assert [int(word[0]) for word in drawn] == output


@given(POINTS)
def test_noise_is_that_of_an_independent_philox_and_layout(point):
    seed, position, stream, token, choice, row = point
    word = philox_words(seed, position, stream, token >> 2, choice, row)[token & 3]
    narrow = rng.gumbel(rng.uniform32(as_numpy(word)))
    words = philox_words(seed, position, stream | 128, token >> 1, choice, row)
    high, low = words[2:] if token & 1 else words[:2]
    wide = rng.gumbel(rng.uniform64(as_numpy(high), as_numpy(low)))
    for convert in (as_numpy, as_torch):
        assert noise(point, convert, wide=False).tobytes() == narrow.tobytes()
        assert noise(point, convert, wide=True).tobytes() == wide.tobytes()


def lattice(wide):
    """Uniforms at both ends of the lattice, and many between."""
    ends = [*range(1 << 12), *range((1 << 32) - (1 << 12), 1 << 32)]
    words = np.array([*ends, *np.random.default_rng(0).integers(0, 1 << 32, 1 << 18)], np.uint64)
    return rng.uniform64(words, words[::-1]) if wide else rng.uniform32(words)


@pytest.mark.parametrize("wide", [False, True])
def test_rough_noise_is_near_enough_to_tell_who_may_win(wide):
    uniform = lattice(wide)
    error = np.abs(rng.rough_gumbel(uniform).astype(np.float64) - rng.gumbel(uniform))
    # The tenth part of what a race allows two of them together.
    assert error.max() < rng.ROUGH / 20


@given(POINTS)
def test_the_counter_can_be_read_back(point):
    """So no two points share one."""
    seed, position, stream, block, choice, row = point
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rng, "philox4x32", lambda counter, key: seen.append((*counter, *key)))
        rng.words(*map(as_numpy, (seed, position)), stream, *map(as_numpy, (block, choice, row)))
    c0, c1, c2, c3, k0, k1 = (int(word[0]) for word in seen[0])
    assert max(c0, c1, c2, c3, k0, k1) < 2**32
    assert (k1 << 32 | k0) == seed % 2**64
    assert ((c2 & 0xFFFF) << 32 | c1, c2 >> 16) == (position, row)
    assert (c3 & 0xFF, c3 >> 8, c0) == (stream, choice, block)


def test_streams_keep_their_numbers():
    names = "TARGET_TILE TARGET_TOKEN DRAFT_TILE DRAFT_TOKEN ACCEPT RESIDUAL_TILE RESIDUAL_TOKEN BONUS_TILE BONUS_TOKEN"
    assert {name: int(stream) for name, stream in Stream.__members__.items()} == {
        name: number for number, name in enumerate(names.split())
    }


def test_narrow_and_wide_noise_never_share_a_stream():
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rng, "philox4x32", lambda counter, key: seen.append(int(counter[3][0])) or (as_numpy(0),) * 4)
        for stream in Stream:
            for wide in (False, True):
                noise((0, 0, stream, 0, 0, 0), as_numpy, wide=wide)
    assert len(set(seen)) == 2 * len(Stream)
    assert max(seen) < 256


@pytest.mark.parametrize("wide", [False, True])
def test_points_that_differ_in_anything_have_different_noise(wide):
    base = (0x0123456789ABCDEF, 2**40 + 2**33 + 77, Stream.TARGET_TOKEN, 0, 3, 5)
    points = [base]
    points += [(base[0] ^ (1 << bit), *base[1:]) for bit in range(64)]
    points += [(base[0], base[1] ^ (1 << bit), *base[2:]) for bit in range(48)]
    points += [(*base[:2], stream, *base[3:]) for stream in Stream if stream != base[2]]
    points += [(*base[:4], choice, base[5]) for choice in range(128) if choice != base[4]]
    points += [(*base[:5], base[5] ^ (1 << bit)) for bit in range(16)]

    def of_four_tokens(point):
        return b"".join(noise((*point[:3], token, *point[4:]), as_numpy, wide=wide).tobytes() for token in range(4))

    assert len(set(map(of_four_tokens, points))) == len(points)


def test_noise_broadcasts():
    ids, seeds = np.arange(300, dtype=np.uint64), as_numpy(-5)
    at = np.arange(7, dtype=np.uint64)[:, None], 0, np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    block = rng.gumbel_noise(ids, seeds, *at)
    assert block.shape == (7, 300)
    for position, token in [(0, 0), (3, 129), (6, 299)]:
        assert block[position, token] == noise((-5, position, 0, token, 0, 0), as_numpy, wide=False)[0]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("convert", [as_numpy, as_torch])
def test_a_run_of_ids_has_the_noise_of_each_id(convert, wide):
    starts = (0, 128, 2**20)
    keys = [[seed, 2**40 + seed, 3, 5] for seed in (1, -2, 2**62)]

    def column(numbers):
        parts = [convert(number) for number in numbers]
        return np.concatenate(parts) if convert is as_numpy else torch.cat(parts)

    seed, position, choice, row = map(column, zip(*keys))
    uniform = rng.uniforms_run(column(starts), 7, seed, position, Stream.TARGET_TOKEN, choice, row, wide=wide)
    run = rng.gumbel(uniform)
    ids = column(starts)[:, None] + column(range(7))
    columns = (part[:, None] for part in (seed, position))
    each = rng.gumbel_noise(ids, *columns, Stream.TARGET_TOKEN, choice[:, None], row[:, None], wide=wide)
    assert np.asarray(run).tobytes() == np.asarray(each).tobytes()


def float32_words():
    """Words where float32 is fine, all over, and where it is coarse."""
    fine, coarse = np.arange(1 << 20), np.arange((1 << 32) - (1 << 20), 1 << 32)
    return np.concatenate([fine, np.arange(1 << 20, (1 << 32) - (1 << 20), 4093), coarse]).astype(np.uint64)


def test_uniforms_are_open_at_both_ends():
    ends32, ends64 = np.array([0, 2**32 - 1], np.uint64), np.array([0, 2**64 - 1], np.uint64)
    assert rng.uniform32(ends32).tolist() == [2**-33, 1 - 2**-24]
    assert rng.uniform64(ends64 >> np.uint64(32), ends64 & np.uint64(2**32 - 1)).tolist() == [2**-54, 1 - 2**-53]
    assert rng.uniform32(ends32).dtype == np.float32
    assert rng.uniform32(as_numpy(5)) == np.float32(5.5 * 2**-32)
    assert rng.uniform64(as_numpy(1), as_numpy(3 << 11)) == (2**21 + 3 + 0.5) * 2**-53


def test_the_float32_transform_is_accurate_monotone_and_capped():
    words = float32_words()
    u = rng.uniform32(words)
    exponential, gumbel = -rng._log1p_negative(u), rng.gumbel(u)
    exact = -np.log1p(-u.astype(np.float64))
    ulps = np.abs(exponential - exact) / np.spacing(exact.astype(np.float32))
    assert ulps.max() < 2.5
    assert np.abs(gumbel + np.log(exact)).max() < 1.1e-6
    assert (np.diff(exponential) >= 0).all()
    assert (np.diff(gumbel) <= 0).all()
    assert gumbel[0] == pytest.approx(33 * np.log(2), abs=1e-6)
    assert gumbel[-1] == pytest.approx(-np.log(24 * np.log(2)), abs=1e-6)


def test_the_float64_transform_is_accurate_monotone_and_capped():
    generator = np.random.default_rng(7)
    bits = generator.integers(0, 2**64, 3000, np.uint64) >> generator.integers(0, 64, 3000, np.uint64)
    ends = np.array([0, 2**64 - 1], np.uint64)
    bits = np.sort(np.concatenate([bits, ~bits, ends]))
    u = rng.uniform64(bits >> np.uint64(32), bits & np.uint64(2**32 - 1))
    exponential, gumbel = -rng._log1p_negative(u), rng.gumbel(u)
    with decimal.localcontext(prec=50):
        exact = [-(1 - decimal.Decimal(x)).ln() for x in u.tolist()]
        for e, g, x in zip(exponential.tolist(), gumbel.tolist(), exact):
            assert abs(decimal.Decimal(e) / x - 1) < 5e-16
            assert abs(decimal.Decimal(g) + x.ln()) < 5e-16 * max(1, abs(g))
    assert (np.diff(exponential) >= 0).all()
    assert (np.diff(gumbel) <= 0).all()
    assert gumbel[0] == pytest.approx(54 * np.log(2))


def test_numpy_and_torch_transform_alike():
    words = float32_words()
    tensor = torch.from_numpy(words.view(np.int64))
    assert rng.gumbel(rng.uniform32(tensor)).numpy().tobytes() == rng.gumbel(rng.uniform32(words)).tobytes()
    wide = rng.gumbel(rng.uniform64(tensor, tensor.flip(0))).numpy()
    assert wide.tobytes() == rng.gumbel(rng.uniform64(words, words[::-1])).tobytes()
