"""The EAGLE-style head, untrained: the network whole, in chunks and in chains; its file; how it is measured."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from drawlot.assets import resolve
from drawlot.errors import ModelError
from drawlot.speculators.eagle_head import EagleHead, EagleHeadConfig, causal, load_head, save_head

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from eagle_chain import Chain
from eagle_measure import DRAFTS, accepted_in_turn, greedy, hits

CONFIG = EagleHeadConfig(
    hidden_size=16,
    intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    rope_theta=10000.0,
    rms_norm_eps=1e-6,
)
LLAMA = LlamaConfig(
    vocab_size=5,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    attn_implementation="eager",
)
TINY = {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32}


class DenseCache:
    """Attention to all that was kept, written at the positions given; the caller may go back and overwrite."""

    def __init__(self):
        self.keys = torch.zeros(1, 2, 64, 8)
        self.values = torch.zeros(1, 2, 64, 8)

    def at(self, start):
        def attend(query, key, value):
            end = start + query.shape[2]
            self.keys[:, :, start:end], self.values[:, :, start:end] = key, value
            seen = torch.arange(end) <= torch.arange(start, end)[:, None]
            out = F.scaled_dot_product_attention(
                query, self.keys[:, :, :end], self.values[:, :, :end], attn_mask=seen, enable_gqa=True
            )
            return out.transpose(1, 2)

        return attend


def random_head(seed=0):
    torch.manual_seed(seed)
    head = EagleHead(CONFIG)
    for weight in head.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.4)
    return head.eval().requires_grad_(False)


def states(length, seed=1):
    return torch.randn(2, 1, length, 16, generator=torch.Generator().manual_seed(seed))


def positions(start, end):
    return torch.arange(start, end).unsqueeze(0)


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(3)
    model = LlamaForCausalLM(LLAMA)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return model.eval().requires_grad_(False)


@pytest.fixture
def folders(tmp_path):
    """A head's folder and its target's."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "model.safetensors").write_bytes(b"the target's weights")
    save_head(random_head(), tmp_path / "head", target)
    return tmp_path / "head", target


def test_the_layer_is_llamas():
    head = random_head()
    hidden, embeddings = states(11)
    layer = LlamaDecoderLayer(LLAMA, 0).requires_grad_(False)
    for part, names in ((layer.self_attn, "qkvo"), (layer.mlp, ("gate", "up", "down"))):
        for name in names:
            getattr(part, f"{name}_proj").weight.copy_(getattr(head, f"{name}_proj").weight)
    layer.input_layernorm.weight.copy_(head.attention_norm.weight)
    layer.post_attention_layernorm.weight.copy_(head.mlp_norm.weight)
    x = head.input_proj(torch.cat([head.hidden_norm(hidden), head.embedding_norm(embeddings)], -1))
    mask = torch.full((11, 11), -torch.inf).triu(1)[None, None]
    rotation = LlamaRotaryEmbedding(LLAMA)(x, positions(0, 11))
    wanted = head.output_norm(layer(x, attention_mask=mask, position_embeddings=rotation))
    torch.testing.assert_close(head(hidden, embeddings, positions(0, 11)), wanted, rtol=1e-4, atol=1e-5)


def test_the_embedded_shape_fits_in_two_megabytes(tmp_path):
    config = EagleHeadConfig(**{**vars(CONFIG), **TINY, "intermediate_size": 832, "max_position_embeddings": 512})
    head = EagleHead(config)
    save_head(head, tmp_path, resolve("tiny"))
    assert sum(weight.numel() for weight in head.parameters()) == 967_936
    assert (tmp_path / "model.safetensors").stat().st_size < 2_000_000
    assert load_head(tmp_path, resolve("tiny")).config == config


@pytest.mark.parametrize("chunks", [(7, 5, 1), (1,) * 13])
def test_chunks_with_a_cache_equal_the_whole(chunks):
    head = random_head()
    hidden, embeddings = states(13)
    whole = head(hidden, embeddings, positions(0, 13))
    assert whole.shape == (1, 13, 16)
    cache, start, parts = DenseCache(), 0, []
    for count in chunks:
        new = slice(start, start + count)
        parts.append(head(hidden[:, new], embeddings[:, new], positions(start, start + count), cache.at(start)))
        start += count
    torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_a_flat_batch_of_ragged_requests_equals_each_alone():
    head = random_head()
    hidden, embeddings = states(9)

    def attend(query, key, value):
        pieces = [DenseCache().at(0)(*(x[:, :, rows] for x in (query, key, value))) for rows in (slice(4), slice(4, 9))]
        return torch.cat(pieces, 1)

    flat = head(hidden, embeddings, torch.cat([positions(0, 4), positions(0, 5)], 1), attend)
    alone = [
        head(hidden[:, rows], embeddings[:, rows], positions(0, n)) for rows, n in ((slice(4), 4), (slice(4, 9), 5))
    ]
    torch.testing.assert_close(flat, torch.cat(alone, 1))


def test_bfloat16_stays_bfloat16():
    head = random_head()
    hidden, embeddings = states(9)
    wanted = head(hidden, embeddings, positions(0, 9))
    out = head.bfloat16()(hidden.bfloat16(), embeddings.bfloat16(), positions(0, 9))
    assert out.dtype == torch.bfloat16
    assert F.cosine_similarity(out.float(), wanted, dim=-1).min() > 0.98


def test_attention_gets_one_dtype_under_autocast():
    hidden, embeddings = states(9)
    dtypes = set()

    def attend(query, key, value):
        dtypes.update((query.dtype, key.dtype, value.dtype))
        return causal(query, key, value)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        random_head()(hidden, embeddings, positions(0, 9), attend)
    assert dtypes == {torch.bfloat16}


def test_chains_from_everywhere_equal_drafting_with_a_cache():
    head = random_head()
    hidden, embeddings = states(12)
    chain = Chain(head, hidden)
    everywhere = [chain.step(embeddings) for _ in range(4)]
    for begin in (0, 1, 5, 8):
        cache = DenseCache()
        given = head(hidden[:, : begin + 1], embeddings[:, : begin + 1], positions(0, begin + 1), cache.at(0))[:, -1:]
        for step in range(4):
            at = begin + step
            if step:
                given = head(given, embeddings[:, at : at + 1], positions(at, at + 1), cache.at(at))
            torch.testing.assert_close(everywhere[step][:, at : at + 1], given, rtol=1e-4, atol=1e-5)


def speculated(head, target, prompt, count):
    """Greedy tokens by drafting with a cache and verifying, and the accepted drafts of each step."""

    def forward(tokens):
        return target.model(torch.tensor([tokens]), use_cache=False).last_hidden_state

    embed, read = target.get_input_embeddings(), target.get_output_embeddings()
    hidden = forward(prompt)
    tokens = [*prompt, int(read(hidden[:, -1]).argmax())]
    cache, read_up_to, accepted = DenseCache(), 0, []
    while len(tokens) < len(prompt) + count:
        known = len(tokens) - 1
        new = embed(torch.tensor([tokens[read_up_to + 1 :]]))
        given = head(hidden[:, read_up_to:known], new, positions(read_up_to, known), cache.at(read_up_to))[:, -1:]
        read_up_to, drafts = known, []
        for at in range(known, known + DRAFTS):
            drafts.append(int(read(given).argmax()))
            given = head(given, embed(torch.tensor([[drafts[-1]]])), positions(at, at + 1), cache.at(at))
        hidden = forward(tokens + drafts)
        choices = read(hidden)[0, known:].argmax(-1).tolist()
        right = [draft == choice for draft, choice in zip(drafts, choices)]
        # As many as there is room for beside the token that ends the step.
        accepted.append(min([*right, False].index(False), len(prompt) + count - len(tokens) - 1))
        tokens += choices[: accepted[-1] + 1]
    return tokens, accepted


def test_what_is_measured_is_greedy_verification(target):
    everything = []
    for seed in range(4):
        head = random_head(seed)
        prompts = torch.randint(0, 5, (4, 6), generator=torch.Generator().manual_seed(seed))
        answers = greedy(target, prompts, 30)
        found = hits(head, target, answers).numpy()
        for prompt, answer, hit in zip(prompts.tolist(), answers.tolist(), found):
            tokens, accepted = speculated(head, target, prompt, 30)
            assert tokens == answer
            assert accepted_in_turn(hit, 5, 35) == accepted
            everything += accepted
    # Every number of accepted drafts was met, else the walk would prove little.
    assert set(everything) == set(range(DRAFTS + 1))


def test_a_step_emits_no_more_than_what_is_left():
    assert accepted_in_turn(np.ones((20, DRAFTS), dtype=bool), begin=3, last=12) == [4, 2]
    assert accepted_in_turn(np.zeros((20, DRAFTS), dtype=bool), begin=3, last=6) == [0, 0]
    assert accepted_in_turn(np.ones((20, DRAFTS), dtype=bool), begin=3, last=4) == []


def test_a_saved_head_comes_back(folders):
    saved, head = random_head(), load_head(*folders)
    assert head.config == CONFIG
    assert not head.training
    for name, weight in saved.state_dict().items():
        assert torch.equal(head.state_dict()[name], weight.bfloat16().float())


def test_the_file_is_as_documented(folders):
    page = (Path(__file__).parents[1] / "docs/eagle_head.md").read_text()
    data = (folders[0] / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = header.pop("__metadata__")
    assert metadata["target_sha256"] == hashlib.sha256(b"the target's weights").hexdigest()
    assert {entry["dtype"] for entry in header.values()} == {"BF16"}
    assert all(f"| `{name}` |" in page for name in (*header, *metadata))


def rewrite(folder, change):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    tensors = load_file(file)
    change(tensors, metadata)
    save_file(tensors, file, metadata)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m: m.update(format="other"), "format and version must be drawlot-eagle-head 1; got other 1"),
        (lambda t, m: m.update(format_version="2"), "got drawlot-eagle-head 2"),
        (lambda t, m: m.clear() or m.update(a="b"), "got None None"),
        (lambda t, m: m.pop("head_dim"), "head_dim must be a positive number; got None"),
        (lambda t, m: m.update(head_dim="8.0"), "head_dim must be a positive number; got 8.0"),
        (lambda t, m: m.update(rope_theta="nan"), "rope_theta must be a positive number; got nan"),
        (lambda t, m: t.pop("q_proj.weight"), "tensors are missing or unknown: q_proj.weight"),
        (lambda t, m: t.update(lm_head=torch.zeros(1)), "tensors are missing or unknown: lm_head"),
        (lambda t, m: m.update(intermediate_size="20"), r"gate_proj.weight must be torch.bfloat16 \(20, 16\); got"),
        (lambda t, m: t.update({"o_proj.weight": torch.zeros(16, 32)}), "got torch.float32"),
    ],
)
def test_another_layout_is_refused_in_one_line(folders, change, message):
    rewrite(folders[0], change)
    with pytest.raises(ModelError, match=message) as caught:
        load_head(*folders)
    assert "\n" not in str(caught.value)


def test_another_target_is_refused_in_one_line(folders):
    head, target = folders
    (target / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ModelError, match=r"was trained for another target than .*; got [0-9a-f]{64}$"):
        load_head(head, target)


def test_what_is_not_there_is_named(folders, tmp_path):
    head, target = folders
    with pytest.raises(ModelError, match=r"no EAGLE head: model\.safetensors is missing"):
        load_head(tmp_path, target)
    with pytest.raises(ModelError, match=r"in one model\.safetensors"):
        load_head(head, tmp_path)
    (head / "model.safetensors").write_bytes(b"not a safetensors file")
    with pytest.raises(ModelError, match="not a safetensors file"):
        load_head(head, target)


def test_the_embedded_name_is_known():
    assert Path(resolve("tiny-eagle")) == Path(resolve("tiny")).parent / "tiny-eagle"
