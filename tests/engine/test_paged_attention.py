"""The decode kernels against the flat path in plain torch: compiled where there is a GPU, else interpreted."""

import numpy as np
import pytest
import torch

from drawlot.engine import paged_attention
from drawlot.engine.attention import LayerLayout, allocate_pools
from drawlot.engine.batch import BatchBuilder, Span
from drawlot.errors import ModelError

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Around the borders of blocks, tiles (16 to 64 tokens here) and parts; 0 is padding.
LENGTHS = [1, 0, 17, 150, 64, 65, 0, 4]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
# The interpreter multiplies the bits of bfloat16.
HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16


def random_case(heads, layout, block_size, dtype):
    """Pools full of random numbers but for block 0, which holds NaN, and tables that name every block once."""
    torch.manual_seed(heads)
    width = -(-max(LENGTHS) // block_size)
    num_blocks = 1 + len(LENGTHS) * width
    (pool,) = allocate_pools([layout], num_blocks, block_size, dtype, DEVICE)
    for half in pool:
        half.normal_()
        half[0] = torch.nan
    tables = 1 + np.random.default_rng(heads).permutation(num_blocks - 1).reshape(len(LENGTHS), width)
    rows, kv_heads = len(LENGTHS), layout.num_kv_heads

    # As models give them: views with the heads before the rows.
    def new(count, dim):
        return torch.randn(1, rows, count, dim, device=DEVICE).to(dtype).transpose(1, 2)

    return pool, tables, new(heads, layout.key_dim), new(kv_heads, layout.key_dim), new(kv_heads, layout.value_dim)


def flat_path(pool, tables, block_size, query, key, value, window, **kwargs):
    """What `PagedBatch` gives for the rows that are no padding."""
    rows = [row for row, length in enumerate(LENGTHS) if length]
    spans = [Span(row, LENGTHS[row] - 1, [0]) for row in rows]
    batch = BatchBuilder(spans, tables, block_size, [window])
    _, _, paged = batch.build(batch.staging.move(DEVICE), [pool], query.dtype)
    order = [span.row for span in batch.spans]
    out = paged.attend(0, query[:, :, order], key[:, :, order], value[:, :, order], window=window, **kwargs)
    return order, out


@pytest.mark.parametrize("num_parts", [1, 2, 5])
@pytest.mark.parametrize(
    ("heads", "layout", "block_size", "dtype", "extra"),
    [
        (4, LayerLayout(2, 64, 64), 16, torch.float32, {}),
        (8, LayerLayout(1, 32, 32), 16, HALF, {}),
        (3, LayerLayout(3, 20, 12), 5, torch.float32, {"window": 6, "scale": 0.3}),
        (4, LayerLayout(2, 8, 8), 4, torch.float32, {"window": 70, "softcap": 2.0}),
        (4, LayerLayout(2, 256, 256), 16, HALF, {"softcap": 30.0, "sinks": True}),
        (4, LayerLayout(4, 24, 16), 1, torch.float32, {"sinks": True}),
    ],
)
def test_equals_the_flat_path(heads, layout, block_size, dtype, extra, num_parts):
    pool, tables, query, key, value = random_case(heads, layout, block_size, dtype)
    sinks = torch.randn(heads, device=DEVICE).to(dtype) if extra.get("sinks") else None
    extra = {"scale": None, "window": None, "softcap": None} | extra | {"sinks": sinks}
    lengths = torch.tensor(LENGTHS, device=DEVICE)
    context = torch.from_numpy(tables).to(DEVICE).flatten(), torch.tensor([tables.shape[1]], device=DEVICE), lengths
    before = [half.clone() for half in pool]

    paged_attention.store(key, value, *pool, *context)
    out = paged_attention.attend(query, *pool, *context, num_parts=num_parts, **extra)

    flat_pool = type(pool)(*before)
    # The flat path multiplies hidden keys by zero, so it must not meet a NaN.
    for half in flat_pool:
        half[0] = 0
    order, expected = flat_path(flat_pool, tables, block_size, query, key, value, **extra)
    assert ((out[:, order] - expected).abs() <= TOLERANCE[dtype]).all()
    padding = [row for row, length in enumerate(LENGTHS) if not length]
    assert (out[:, padding] == 0).all()
    for half, flat in zip(pool, flat_pool):
        assert torch.equal(half[1:], flat[1:])
        assert half[0].isnan().all()


def test_refuses_wide_heads():
    query = torch.zeros(1, 1, 1, 257, device=DEVICE)
    pool = torch.zeros(1, 1, 1, 257, device=DEVICE)
    row = torch.ones(1, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ModelError, match="head dimension 257: a GPU decodes up to 256 \\(enforce_eager"):
        paged_attention.attend(query, pool, pool, row, row, row, num_parts=1)
