"""Any decoder that transformers runs through AttentionInterface gives its own tokens here; others are refused."""

import pytest
import torch
from running import greedy, prompts, run, tokens

from drawlot.engine.adapters import canary
from drawlot.engine.args import EngineArgs
from drawlot.engine.engine import Engine
from drawlot.errors import ModelError, ParameterError

SUPPORTED = ["llama", "qwen3", "mistral", "gemma3", "gemma2", "gpt_oss", "gpt2", "deepseek_v3"]


@pytest.mark.parametrize("name", SUPPORTED)
def test_greedy_equals_generate(name, make_engine, reference):
    """Prompts and outputs longer than the sliding window, several at once, prompts in chunks."""
    many = prompts(3, 17, 9, 30)
    outputs = run(make_engine(name, max_num_batched_tokens=12), [(p, greedy(20)) for p in many])
    expected = []
    for prompt in many:
        ids = torch.tensor([prompt])
        generated = reference(name).generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, pad_token_id=0
        )
        expected.append([generated[0, len(prompt) :].tolist()])
    assert tokens(outputs) == expected


def test_embedded_model_equals_generate():
    from transformers import AutoModelForCausalLM

    from drawlot.assets import resolve

    engine = Engine(EngineArgs(model="tiny", num_kv_blocks=128))
    texts = ["def main(self):\n", "import os\n\nclass "]
    outputs = run(engine, [(text, greedy(40)) for text in texts])
    model = AutoModelForCausalLM.from_pretrained(resolve("tiny"), dtype=torch.float32).eval()
    for text, output in zip(texts, outputs):
        ids = torch.tensor([engine.tokenizer.encode(text)])
        generated = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
        expected = generated[0, ids.shape[1] :].tolist()
        assert output.outputs[0].token_ids == expected
        assert output.outputs[0].text == engine.tokenizer.decode(expected, skip_special_tokens=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_passes_the_canary(dtype, make_engine):
    engine = make_engine("qwen3", dtype=dtype)
    (output,) = run(engine, [(prompts(9)[0], greedy(5))])
    assert len(output.outputs[0].token_ids) == 5


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bloom", "model type 'bloom'"),
        ("falcon", "model type 'falcon'"),
        ("stablelm", "model type 'stablelm' does not run with paged attention"),
        ("mamba", "layers that are not supported: linear_attention"),
        ("rwkv", "recurrent state"),
        ("lfm2", "layers that are not supported: conv"),
        ("t5", "encoder-decoder"),
    ],
)
def test_refuses_what_it_cannot_run(name, reason, make_engine):
    with pytest.raises(ModelError, match=reason):
        make_engine(name)


def test_refuses_what_is_not_there(tmp_path):
    with pytest.raises(ModelError, match="nothing: no such folder"):
        Engine(EngineArgs(model=str(tmp_path / "nothing")))
    with pytest.raises(ModelError, match="cannot load the configuration"):
        Engine(EngineArgs(model=str(tmp_path)))


def test_refuses_weights_without_safetensors(model_folder, tmp_path):
    from pathlib import Path

    (tmp_path / "config.json").write_bytes((Path(model_folder("llama")) / "config.json").read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot load the weights"):
        Engine(EngineArgs(model=str(tmp_path), tokenizer="tiny"))


def test_canary_sees_a_wrong_attention(make_engine, monkeypatch):
    """A mask that shows one token too many: the smallest mistake that an attention can make."""
    from drawlot.engine import batch

    causal = batch.causal_mask
    monkeypatch.setattr(batch, "causal_mask", lambda starts, *rest: causal(starts + 1, *rest))
    with pytest.raises(ModelError, match="gives other logits"):
        make_engine("llama")


def test_canary_sees_a_layer_that_is_not_called(make_engine, monkeypatch):
    monkeypatch.setattr(canary._Recorder, "attend", lambda self, layer, query, *_, **__: query.transpose(1, 2))
    with pytest.raises(ModelError, match="used our attention in layers"):
        make_engine("llama")


def test_longrope_is_kept_below_its_first_length(make_engine, model_folder, tmp_path):
    import transformers

    config = transformers.LlamaConfig.from_pretrained(model_folder("llama"))
    factors = [2.0] * (config.head_dim // 2)
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 2.0,
        "short_factor": [1.0] * len(factors),
        "long_factor": factors,
        "original_max_position_embeddings": 48,
    }
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    args = {"model": str(tmp_path), "tokenizer": "tiny", "num_kv_blocks": 16}
    assert Engine(EngineArgs(**args)).config.max_model_len == 48
    with pytest.raises(ParameterError, match="max_model_len: must be at most 48"):
        Engine(EngineArgs(**args, max_model_len=49))
