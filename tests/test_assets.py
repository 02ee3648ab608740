"""The embedded models: complete, small, and better than xz on what they have not seen."""

import ast
import hashlib
import json
import lzma
import math
import sysconfig
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from drawlot.assets import EMBEDDED, resolve

ASSETS = Path(resolve("tiny")).parent
MANIFEST = json.loads((ASSETS / "manifest.json").read_text())
RECORD = json.loads((Path(__file__).parents[1] / "benchmarks/results/tiny_training.json").read_text())


@pytest.fixture(scope="module")
def models():
    return {
        name: AutoModelForCausalLM.from_pretrained(resolve(name), dtype=torch.float32, local_files_only=True)
        for name in EMBEDDED
    }


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(resolve("tiny"), local_files_only=True)


def greedy(model, tokens, new_tokens):
    prompt = torch.tensor([tokens])
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new_tokens, do_sample=False)
    return output[0, len(tokens) :].tolist()


def bits_per_byte(model, tokens, size):
    """Windows of 512 tokens that overlap by half; each token counts once."""
    tokens = torch.tensor([0, *tokens, 0])
    nats = 0.0
    for start in range(0, max(1, len(tokens) - 1 - 256), 256):
        window = tokens[start : start + 513]
        with torch.no_grad():
            logits = model(window[None, :-1]).logits[0]
        skip = 256 if start else 0
        nats += torch.nn.functional.cross_entropy(logits[skip:], window[1 + skip :], reduction="sum").item()
    return nats / math.log(2) / size


def test_resolve_knows_its_own_names_and_passes_on_the_rest():
    assert all(Path(resolve(name), "model.safetensors").is_file() for name in EMBEDDED)
    assert resolve("org/model") == "org/model"


def test_everything_embedded_fits_in_16_megabytes():
    assert sum(file.stat().st_size for file in ASSETS.rglob("*") if "__pycache__" not in file.parts) <= 16_000_000


@pytest.mark.parametrize(("name", "parameters"), [("tiny", 5_770_496), ("tiny-draft", 893_568)])
def test_model_directory_is_complete(models, name, parameters):
    model = models[name]
    assert model.num_parameters() == parameters
    assert model.config.vocab_size == 4096
    assert model.config.max_position_embeddings == 512
    assert model.generation_config.eos_token_id == [0, 3]
    weights = Path(resolve(name), "model.safetensors").read_bytes()
    header = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
    assert {tensor["dtype"] for key, tensor in header.items() if key != "__metadata__"} == {"BF16"}


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_draft_has_the_same_tokenizer(file):
    assert (ASSETS / "tiny" / file).read_bytes() == (ASSETS / "tiny-draft" / file).read_bytes()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "def add(a, b):\n",
        "\tif x:\r\n\t\treturn 'é' \n\n\n",
        "🙂 naïve 漢字\u200d\x00",
        " a  b   c    ",
        "__init__ 12.50",
    ],
)
def test_tokenizer_gives_back_what_it_was_given(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_tokenizer_has_4096_entries_and_adds_none(tokenizer):
    assert len(tokenizer) == 4096
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 0)
    assert len(tokenizer("import os").input_ids) == 2


def test_a_prompt_that_ends_a_line_is_cut_as_in_a_file(tokenizer):
    prompt, whole = (tokenizer(text).input_ids for text in ("def f():\n", "def f():\n    return 1\n"))
    assert whole[: len(prompt)] == prompt


def test_chat_template_writes_turns(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "pass"},
        {"role": "user", "content": "More"},
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|user|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>pass<|end|><|user|>More<|end|><|assistant|>"
    )


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_function_goes_on_as_python(models, tokenizer, name):
    prompt = "def add(a, b):\n"
    text = prompt + tokenizer.decode(greedy(models[name], tokenizer(prompt).input_ids, 48))
    [function] = ast.parse(text.split("\n\n")[0]).body
    assert isinstance(function, ast.FunctionDef)
    assert function.name == "add"


def test_a_request_is_answered_by_a_function_and_the_turn_ends(models, tokenizer):
    messages = [{"role": "user", "content": "Write a function is_even: Return True if n is even."}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    *answer, last = greedy(models["tiny"], prompt, 40)
    assert tokenizer.decode([last]) == "<|end|>"
    assert ast.parse(tokenizer.decode(answer)).body[0].name == "is_even"


def test_held_out_files_are_not_training_files():
    held_out, training = MANIFEST["held_out"], MANIFEST["training"]
    assert not held_out.keys() & training.keys()
    assert not set(held_out.values()) & set(training.values())


@pytest.mark.parametrize("name", EMBEDDED)
def test_beats_xz_on_a_held_out_file(models, tokenizer, name):
    path = "email/parser.py"
    data = Path(sysconfig.get_path("stdlib"), path).read_bytes()
    if hashlib.sha256(data).hexdigest() != MANIFEST["held_out"][path]:
        pytest.skip("this Python's file is another version of the held-out one")
    packed = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
    tokens = tokenizer(data.decode(), verbose=False).input_ids
    assert bits_per_byte(models[name], tokens, len(data)) < 0.5 * 8 * len(packed) / len(data)


@pytest.mark.parametrize("name", EMBEDDED)
def test_card_states_the_recorded_figures(name):
    card = Path(resolve(name), "README.md").read_text()
    record, xz = RECORD["models"][name], RECORD["xz_9e_bits_per_byte"].values()
    assert record["bits_per_byte"] < min(xz)
    assert all(f"{figure:.3f}" in card for figure in (record["bits_per_byte"], *xz))
    assert f"{record['parameters']:,}" in card
