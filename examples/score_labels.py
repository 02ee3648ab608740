"""`LLM.score`: how probable each label is right after a text; nothing is drawn."""

from drawlot import LLM

llm = LLM("tiny")
encoded = {name: llm.engine.tokenizer.encode(name, add_special_tokens=False) for name in (" os", " sys", " re")}
assert all(len(ids) == 1 for ids in encoded.values())  # a label is one token
labels = [ids[0] for ids in encoded.values()]

query = "import os\nimport sys\nimport re\n"
items = ["import", "from os import path\nimport", "import os\nimport sys\nimport"]
among_labels = llm.score(query, items, labels)
among_all_tokens = llm.score(query, items, labels, apply_softmax=False)
for item, among, share in zip(items, among_labels, among_all_tokens):
    print(repr(item))
    for name, probability, part in zip(encoded, among.scores, share.scores):
        print(f"  {name!r:7} {probability:.3f} among the labels, {part:.3f} among all tokens")
    assert abs(sum(among.scores) - 1) < 1e-6
