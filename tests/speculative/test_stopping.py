"""A stop inside an accepted run ends the output where it ends without drafts; the embedded model."""

import pytest

from drawlot.entrypoints.llm import LLM
from drawlot.params import SamplingParams
from tests.speculative.models import SPECULATORS

PROMPT = "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"


@pytest.fixture(scope="module")
def plain():
    return LLM()


@pytest.mark.parametrize("speculator", SPECULATORS)
def test_stop_strings_at_any_place(plain, speculator):
    (whole,) = plain.generate(PROMPT, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    text = whole.outputs[0].text
    stops = [text[start : start + length] for start in range(0, 60, 3) for length in (1, 4, 9)]
    asked = [
        SamplingParams(
            temperature=0, max_tokens=40, ignore_eos=True, stop=["never", stop], logprobs=1, min_tokens=i % 7 * 2
        )
        for i, stop in enumerate(stops)
    ]
    drafting = LLM(speculative_config={"method": speculator, "rejection_sample_method": "coupled"})
    outputs = drafting.generate([PROMPT] * len(asked), asked, use_tqdm=False)
    for output, wanted in zip(outputs, plain.generate([PROMPT] * len(asked), asked, use_tqdm=False)):
        (ours,), (theirs,) = output.outputs, wanted.outputs
        for name in ("text", "token_ids", "finish_reason", "stop_reason"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert [list(entry) for entry in ours.logprobs] == [list(entry) for entry in theirs.logprobs]
    assert sum(output.outputs[0].finish_reason == "stop" for output in outputs) > len(asked) / 2
    metrics = drafting.engine.speculative_metrics
    assert metrics.num_emitted_tokens < metrics.num_spec_steps + metrics.num_accepted_draft_tokens
