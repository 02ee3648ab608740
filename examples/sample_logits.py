"""`sample` in a bare loop: any logits in, tokens and logprobs out."""

import torch

import drawlot

VOCAB = 1000
torch.manual_seed(0)
table = torch.randn(VOCAB, VOCAB) * 3  # a bigram "model": the logits of the next token, given the last one

params = drawlot.SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=7, repetition_penalty=1.1, logprobs=2)
prompts = [[1, 2, 3], [4]]
outputs = [[], []]
for _ in range(8):
    last = [(prompt + output)[-1] for prompt, output in zip(prompts, outputs)]
    drawn = drawlot.sample(table[last], params, prompt_token_ids=prompts, output_token_ids=outputs)
    assert not drawn.status.any()  # no row had NaN, +inf or nothing to draw
    for output, token_id in zip(outputs, drawn.token_ids.tolist()):
        output.append(token_id)

for prompt, output in zip(prompts, outputs):
    print(prompt, "->", output)
print("last step, the drawn token and the 2 best:")
print(drawn.logprobs.logprob_token_ids.tolist())
print([[round(x, 3) for x in line] for line in drawn.logprobs.logprobs.tolist()])

# The draw depends on the seed, the position and the row's logits, and on nothing else.
again = drawlot.sample(table[last[1:]], params, prompt_token_ids=prompts[1:], output_token_ids=[outputs[1][:-1]])
assert again.token_ids.item() == outputs[1][-1]
