"""`LLM`: many prompts at once, each with its own parameters; offline, with the model that comes with drawlot."""

from drawlot import LLM, SamplingParams

llm = LLM("tiny")
prompts = ["def add(a, b):", "import os\n", "class Stack:\n", "for i in range("]
params = [
    SamplingParams(temperature=0, max_tokens=24),
    SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=24, stop="\n\n"),
    SamplingParams(temperature=0.8, top_k=40, repetition_penalty=1.2, seed=2, max_tokens=24, logprobs=2),
    SamplingParams(temperature=0.9, min_p=0.1, seed=3, max_tokens=12, n=2),
]
outputs = llm.generate(prompts, params, use_tqdm=False)
for output in outputs:
    for choice in output.outputs:
        print(repr(output.prompt), "->", repr(choice.text), f"({choice.finish_reason})")

first = outputs[2].outputs[0].logprobs[0]  # the drawn token and the 2 best, at the first position
print([(entry.decoded_token, round(entry.logprob, 3), entry.rank) for entry in first.values()])

# A request with a seed draws the same text whatever shares the batch with it.
assert llm.generate(prompts[1], params[1], use_tqdm=False)[0].outputs[0].text == outputs[1].outputs[0].text
