"""The oracle of the GPU proofs is the reference: on random rows the same tokens, status, margins, logprobs and ranks.

And the proofs themselves run: here on the torch backend, as small as they go.
"""

import json

import numpy as np
import pytest
import torch

from benchmarks.gpu_proof import __main__ as driver
from benchmarks.gpu_proof import logprob_oracle, oracle
from drawlot import sample
from drawlot.kernels import reference, registry
from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams, SampledRows
from tests.cases import random_batch

# Rows of each vocabulary size; the reference loops over rows, so the wide ones are fewer.
ROWS = {1: 1024, 2: 1536, 3: 2048, 127: 3072, 128: 3072, 129: 3584, 1000: 4096, 4097: 1280, 32001: 320}
assert sum(ROWS.values()) >= 20_000


@pytest.fixture
def compared(monkeypatch):
    """How many rows were compared: each call of the reference also asks the oracle."""
    counts = []
    by_reference = reference.sample_rows

    def both(
        logits: torch.Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, *, wide: bool = False
    ) -> SampledRows:
        # `sample` draws nothing but first rows of steps.
        params = params._replace(row=torch.arange(len(logits)) % 3 * 21845)
        # Listing every token takes the reference longer than all the rest.
        if wanted is not None:
            wanted = wanted._replace(num_top=wanted.num_top.clamp(max=20), max_top=min(wanted.max_top, 20))
        expected = by_reference(logits, params, edits, wanted, wide=wide)
        got = oracle.sample_rows(logits, params, edits, wide=wide)
        assert torch.equal(got.token_ids, expected.token_ids)
        assert torch.equal(got.status, expected.status)
        torch.testing.assert_close(got.margin, expected.margin, rtol=1e-9, atol=1e-9)
        if wanted is not None:
            ids, logprobs, ranks = logprob_oracle.logprobs(logits, params, edits, got.token_ids, wanted)
            assert torch.equal(ids, expected.logprobs[0])
            torch.testing.assert_close(logprobs.float(), expected.logprobs[1], rtol=2e-7, atol=1e-9)
            assert torch.equal(ranks, expected.logprobs[2])
        counts.append(len(logits))
        return expected

    monkeypatch.setattr(reference, "sample_rows", both)
    monkeypatch.setattr(oracle, "_CHUNK", 1 << 18)
    registry._load.cache_clear()
    yield counts
    registry._load.cache_clear()


@pytest.mark.parametrize("vocab_size", ROWS)
def test_the_oracle_is_the_reference(vocab_size, compared):
    rng = np.random.default_rng([3, vocab_size])
    for _ in range(ROWS[vocab_size] // 64):
        batch = random_batch(rng, vocab_size, 64)
        sample(
            batch.logits,
            batch.params,
            positions=batch.positions,
            prompt_token_ids=batch.prompts,
            output_token_ids=batch.outputs,
            allowed_bitmask=batch.bitmask,
            choice_index=batch.choices,
            logprobs_mode=batch.mode,
            use_fp64_gumbel=batch.wide,
            backend="reference",
        )
    assert sum(compared) == ROWS[vocab_size]


ON_THE_CPU = ["--backend", "torch", "--device", "cpu", "--small"]
NEEDS_A_GPU = "sanitizer", "graphs", "predecessors"


def test_proofs_run_and_pass(tmp_path, capsys):
    assert driver.main(["-o", str(tmp_path), *ON_THE_CPU]) == 0
    for name, line in zip(driver.PROOFS, capsys.readouterr().out.splitlines(), strict=True):
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found["verdict"] == ("not run" if name in NEEDS_A_GPU else "passed")
        assert line.startswith(f"{found['verdict']:8} {name}")
        assert {"gpu", "torch", "triton", "commit", "date"} <= found["conditions"].keys()
        assert all(check["passed"] in (True, None) for check in found["checks"])


def test_a_check_that_fails_and_a_proof_that_breaks_are_told(tmp_path, capsys, monkeypatch):
    def fails(setting, proof):
        proof.check("the good part", True)
        proof.check("the bad part", False, rows=3)

    def breaks(setting, proof):
        proof.check("the good part", True)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(driver, "PROOFS", {"laws": fails, "tail": breaks})
    assert driver.main(["-o", str(tmp_path), *ON_THE_CPU]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("FAILED   laws")
    assert first.endswith("the bad part")
    assert second.endswith("ran to its end")
    assert "out of memory" in (tmp_path / "tail.json").read_text()
