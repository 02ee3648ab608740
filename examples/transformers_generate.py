"""`model.generate` of plain transformers, with drawlot's draw: a seed for each row, logprobs, any batch."""

from transformers import AutoModelForCausalLM, AutoTokenizer

from drawlot import SamplingParams
from drawlot.adapters.transformers import custom_generate
from drawlot.assets import resolve

path = resolve("tiny")  # a model that comes with drawlot; any decoder-only one will do
model = AutoModelForCausalLM.from_pretrained(path, dtype="float32")  # bfloat16 logits would vary with the batch
tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")


def generate(prompts, params):
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
    out = model.generate(
        **inputs,
        custom_generate=custom_generate,
        sampling_params=params,
        max_new_tokens=24,
        return_dict_in_generate=True,
    )
    return tokenizer.batch_decode(out.sequences, skip_special_tokens=True), out.logprobs.logprobs[:, :, 0]


prompts = ["def add(a, b):", "import", "for i in range("]
params = [SamplingParams(temperature=0.8, top_p=0.9, seed=seed, logprobs=0, max_tokens=24) for seed in (1, 2, 3)]
texts, logprobs = generate(prompts, params)
for text, line in zip(texts, logprobs.tolist()):
    print(repr(text), [round(x, 2) for x in line[:4]], "...")

alone, _ = generate(prompts[1:2], params[1:2])
assert alone == texts[1:2]  # whatever its neighbours, a row draws its own tokens
