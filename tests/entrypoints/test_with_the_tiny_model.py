import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from drawlot.assets import resolve
from drawlot.entrypoints.cli import main
from drawlot.entrypoints.llm import LLM
from drawlot.errors import ParameterError
from drawlot.params import SamplingParams

QUERY = "for name in sorted(names):\n    print(name, values[name])\n\n\ndef main():\n"
ITEMS = ["    return", "    raise ValueError(", "import", " " * 8]
LABELS = (" True", " False", " None", " self")


@pytest.fixture(scope="module")
def llm():
    return LLM(seed=0)


@pytest.fixture(scope="module")
def reference():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(resolve("tiny"), dtype=torch.float32).eval()


def label_ids(llm):
    return [llm.engine.tokenizer.encode(label, add_special_tokens=False)[0] for label in LABELS]


@pytest.mark.parametrize("apply_softmax", [True, False])
@pytest.mark.parametrize("item_first", [True, False])
def test_scores_are_those_of_a_plain_forward(llm, reference, apply_softmax, item_first):
    labels = label_ids(llm)
    scored = llm.score(QUERY, ITEMS, labels, apply_softmax=apply_softmax, item_first=item_first)
    query_ids = llm.engine.tokenizer.encode(QUERY)
    for item, result in zip(ITEMS, scored):
        item_ids = llm.engine.tokenizer.encode(item, add_special_tokens=False)
        ids = item_ids + query_ids if item_first else query_ids + item_ids
        assert result.prompt_token_ids == ids
        assert result.label_token_ids == labels
        with torch.no_grad():
            logits = reference(torch.tensor([ids])).logits[0, -1].double()
        expected = logits[labels].softmax(-1) if apply_softmax else logits.softmax(-1)[labels]
        assert result.scores == pytest.approx(expected.tolist(), rel=2e-5)


def test_the_query_is_computed_once():
    llm = LLM()
    llm.score(QUERY, ITEMS, [5, 6])
    stats, block_size = llm.engine.stats, llm.engine.config.block_size
    query = len(llm.engine.tokenizer.encode(QUERY))
    items = sum(len(llm.engine.tokenizer.encode(item, add_special_tokens=False)) for item in ITEMS)
    shared = query // block_size * block_size
    assert shared > 0
    assert stats.cached_tokens == len(ITEMS) * shared
    assert stats.computed_tokens == query + items + len(ITEMS) * (query - shared)
    assert stats.generated_tokens == 0


def test_errors_name_the_prompt(llm):
    with pytest.raises(ParameterError, match=r"^prompts\[1\]: prompt: must have 1 to 511 tokens"):
        llm.generate(["a", "a b" * 600])
    with pytest.raises(ParameterError, match=r"^prompt: must be valid Unicode"):
        llm.generate("\udcff")
    with pytest.raises(ParameterError, match=r"^query and items: must be valid Unicode"):
        llm.score("\udcff", ["a"], [5])


def test_chat_uses_the_template_and_ends_with_the_turn(llm):
    [output] = llm.chat([{"role": "user", "content": "Reverse a list."}], SamplingParams(max_tokens=200, seed=1))
    assert llm.engine.tokenizer.decode(output.prompt_token_ids) == "<|user|>Reverse a list.<|end|><|assistant|>"
    assert "<|" not in output.outputs[0].text


def test_the_command_draws_what_the_library_draws(llm):
    params = SamplingParams(max_tokens=12, temperature=0.8, top_p=0.95, seed=7, n=2, logprobs=2)
    [expected] = llm.generate("import os", params)
    command = [sys.executable, "-m", "drawlot.entrypoints.cli", "generate", "import os", "--max-tokens", "12", "--json"]
    command += ["--temperature", "0.8", "--seed", "7", "--n", "2", "--logprobs", "2"]
    environment = {**os.environ, "DRAWLOT_TOP_P": "0.95", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    record = json.loads(done.stdout)
    assert [choice["text"] for choice in record["outputs"]] == [choice.text for choice in expected.outputs]
    [first, *_] = record["outputs"][0]["logprobs"]
    assert first[0]["token_id"] == expected.outputs[0].token_ids[0]
    assert first[0]["logprob"] == pytest.approx(next(iter(expected.outputs[0].logprobs[0].values())).logprob, rel=1e-4)


def test_bench_engine_splits_the_step(capsys):
    arguments = ["--requests", "2", "--prompt-tokens", "8", "--new-tokens", "4", "--repeats", "1", "--no-baseline"]
    assert main(["bench", "engine", "--json", *arguments]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert set(measured["step_ms"]) == {"forward", "sampling", "bookkeeping", "detokenize"}
    # Three steps draw the three tokens after the first.
    assert sum(measured["step_ms"].values()) * 3 / 1000 <= measured["seconds"]["drawlot"][0]
    assert measured["ratio"] is None
    assert main(["bench", "engine", "--new-tokens", "500"]) == 2
    assert capsys.readouterr().err.startswith("drawlot: new_tokens: must be at most 444 after that prompt")


@pytest.mark.skipif(find_spec("psutil") is not None, reason="psutil is installed")
def test_bench_engine_says_what_transformers_lacks(capsys):
    assert main(["bench", "engine", "--repeats", "1"]) == 1
    assert capsys.readouterr().err.startswith("drawlot: transformers' generate_batch needs psutil on a CPU")
