"""What an engine does: permanent rows, a batch in any order, a grammar bitmask, penalties, logprobs."""

import torch

from drawlot import LogitsRows, Sampler, SamplingParams

VOCAB = 1000
torch.manual_seed(0)
table = torch.randn(VOCAB, VOCAB) * 3  # a bigram "model": the logits of the next token, given the last one
everything = torch.full((-(-VOCAB // 32),), -1, dtype=torch.int32)
even_ids = torch.full_like(everything, 0x55555555)  # bit id & 31 of word id >> 5 is set for an allowed id

sampler = Sampler(max_num_reqs=8, vocab_size=VOCAB)
tokens = {5: [1, 2, 3], 0: [4], 3: [5, 6]}  # prompt and output of the requests, by state row
sampler.add_request(5, SamplingParams(temperature=0), tokens[5])
sampler.add_request(0, SamplingParams(seed=7, top_p=0.9, frequency_penalty=0.5, logprobs=2), tokens[0])
sampler.add_request(3, SamplingParams(seed=8, presence_penalty=2, logprob_token_ids=[10, 11]), tokens[3])

for _ in range(6):
    batch = list(tokens)  # any order; requests may come and go between steps
    index = torch.tensor(batch)
    rows = LogitsRows(
        idx_mapping=index,
        expanded_idx_mapping=index,
        local_positions=torch.zeros_like(index),
        positions=torch.tensor([len(tokens[i]) for i in batch]),
        input_ids=torch.tensor([tokens[i][-1] for i in batch]),
        cu_num_logits=torch.arange(len(batch) + 1, dtype=torch.int32),
    )
    bitmask = torch.stack([even_ids if i == 3 else everything for i in batch])  # request 3 obeys a grammar
    drawn = sampler(table[rows.input_ids], rows, bitmask)
    sampler.commit(index, drawn.token_ids.unsqueeze(1), torch.ones_like(index))
    for i, token_id in zip(batch, drawn.token_ids.tolist()):
        tokens[i].append(token_id)

print(tokens)
print("logprobs of the last step:", drawn.logprobs.logprobs.tolist())
assert all(token_id % 2 == 0 for token_id in tokens[3][2:])
