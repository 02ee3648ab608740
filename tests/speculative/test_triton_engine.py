"""Drafts that Triton's kernels verify, in their interpreter: the engine emits what it emits with the torch backend."""

from importlib.util import find_spec

import pytest
import torch

from tests.speculative.models import SPECULATORS
from tests.speculative.running import check_idle, drafts_of, prompts, run, sampled, tokens

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None or torch.cuda.is_available(), reason="for Triton's interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
REQUESTS = list(
    zip(
        prompts(5, 9, 3, 7),
        [
            sampled(0, temperature=0, max_tokens=5),
            sampled(1, max_tokens=5, logprobs=1),
            sampled(2, top_k=5, top_p=0.9, max_tokens=5),
            sampled(3, presence_penalty=1.0, repetition_penalty=1.2, max_tokens=5),
        ],
    )
)


@pytest.mark.parametrize("method", SPECULATORS)
@pytest.mark.parametrize("verification", ["coupled", "standard", "block"])
def test_emits_what_the_torch_backend_emits(engine_of, method, verification):
    config = {"method": method, "rejection_sample_method": verification}
    if method == "ngram":
        config["prompt_lookup_min"] = 1
    fast, exact = (engine_of(config, sampler_backend=backend) for backend in ("triton", "torch"))
    got, expected = run(fast, REQUESTS), run(exact, REQUESTS)
    assert tokens(got) == tokens(expected)
    assert [drafts_of(output) for output in got] == [drafts_of(output) for output in expected]
    assert sum(accepted for _, accepted in map(drafts_of, got)) > 0
    check_idle(fast)
