"""Prepares the embedded models' data: the standard library's source, split by path, and its tokenizer.

Reads the standard library of the Python that runs it (the released weights come from 3.11.7) and writes

* into the assets: the byte-level BPE tokenizer, the chat template, the licence and `manifest.json`, which
  names every file used with its hash and its side of the split;
* into a work folder: the token streams and held-out texts that `tools/train_tiny.py` reads.

The same library gives the same files, byte for byte: nothing here is random.
"""

import argparse
import ast
import hashlib
import json
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 4096
CONTEXT = 512
END_OF_TEXT, USER, ASSISTANT, END = SPECIAL = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>")
EOT = SPECIAL.index(END_OF_TEXT)

# Newlines and runs of spaces stand alone, so that a prompt that ends after "def f():\n" is cut into the same
# tokens as the same words in the middle of a file.
PIECES = r"\n+|\t+| {2,}| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s"

# Any role but the assistant's (a system's, a tool's) speaks as the user.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}{{ message['content'] }}<|end|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)

NEWLINE = "Ċ"  # the newline byte, as byte-level vocabularies spell it
LEFT_OUT = ("site-packages/", "encodings/", "pydoc_data/", "_sysconfigdata")
TESTS = re.compile(r"(^|/)(tests?|idle_test)/|(^|/)test_")
ESCAPES_AND_DIGITS = re.compile(r"\\(?:x..|u....|\d+|[rn])|\d|[^\x00-\x7f]|0x[0-9a-f]+")


@dataclass(frozen=True)
class Source:
    """One file of the standard library."""

    path: str
    text: str
    sha256: str
    held_out: bool

    @property
    def kind(self) -> str:
        return "tests" if TESTS.search(self.path) else "library"


def is_worth_learning(text: str) -> bool:
    """Whether a file is Python of this version, not tiny, and not mostly escapes or digits."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    noise = sum(map(len, ESCAPES_AND_DIGITS.findall(text)))
    return len(text) >= 200 and noise < 0.15 * len(text)


def read_library(root: Path) -> list[Source]:
    """Every file worth learning, one path in twenty held out."""
    sources = []
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root).as_posix()
        if path.startswith(LEFT_OUT):
            continue
        data = file.read_bytes()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            continue
        if is_worth_learning(text):
            held_out = int(hashlib.sha256(path.encode()).hexdigest(), 16) % 20 == 0
            sources.append(Source(path, text, hashlib.sha256(data).hexdigest(), held_out))
    return without_leaks(sources)


def without_leaks(sources: list[Source]) -> list[Source]:
    """Drops the held-out files that training files repeat: a tenth or more of their pairs of long lines."""

    def line_pairs(source: Source) -> set[tuple[str, str]]:
        return set(pairwise(line for line in source.text.splitlines() if len(line.strip()) >= 20))

    seen = set[tuple[str, str]]().union(*(line_pairs(source) for source in sources if not source.held_out))
    return [
        source
        for source in sources
        if not source.held_out or len((pairs := line_pairs(source)) & seen) < 0.1 * max(len(pairs), 1)
    ]


def without_docstrings(text: str) -> str:
    """The same code with the docstrings of its functions taken out, where they stand on lines of their own."""
    lines, dropped = text.split("\n"), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            docstring, *rest = node.body
            if rest and node.lineno < docstring.lineno and docstring.end_lineno < rest[0].lineno:
                dropped.update(range(docstring.lineno - 1, docstring.end_lineno))
                gap = range(docstring.end_lineno, rest[0].lineno - 1)
                dropped.update(line for line in gap if not lines[line].strip())
    return "\n".join(line for number, line in enumerate(lines) if number not in dropped)


def chats(source: Source) -> Iterator[str]:
    """The documented functions of a file as turns: the docstring asks, in four forms; the code answers."""
    for node in ast.walk(ast.parse(source.text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not (doc := ast.get_docstring(node)):
            continue
        arguments = ast.unparse(node.args)
        request = " ".join(doc.split("\n\n")[0].split())
        body = ast.get_source_segment(source.text, node) or ""
        answer = without_docstrings(re.sub(rf"^ {{{node.col_offset}}}", "", body, flags=re.MULTILINE))
        is_method = arguments.startswith(("self", "cls"))
        if is_method or not (12 <= len(request) <= 300 and 30 <= len(answer) <= 1500):
            continue
        for form in (
            request,
            f"Write a function {node.name}: {request}",
            f"Write a Python function. {request}",
            f"Write {node.name}({arguments}). {request}",
        ):
            yield f"{USER}{form}{END}{ASSISTANT}{answer}{END}"


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE: every string round-trips, and no token is added by itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[USER, ASSISTANT, END],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Writes the tokenizer's files, `tokenizer.json` without the indentation that would double it."""
    tokenizer.save_pretrained(directory)
    compact = directory / "tokenizer.json"
    compact.write_text(json.dumps(json.loads(compact.read_text()), ensure_ascii=False, separators=(",", ":")))


def save_manifest(sources: list[Source], file: Path) -> None:
    """One line a file, so that a change of the data reads well in a diff."""
    manifest = {
        "source": f"the standard library of CPython {platform.python_version()}: SHA-256 by path",
        "held_out": {source.path: source.sha256 for source in sources if source.held_out},
        "training": {source.path: source.sha256 for source in sources if not source.held_out},
    }
    file.write_text(json.dumps(manifest, indent=0) + "\n")


def encode(tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The documents' tokens end to end, and where each begins (with the total last)."""
    encoded = [tokens.ids for tokens in tokenizer.backend_tokenizer.encode_batch(documents)]
    return np.concatenate(encoded).astype(np.uint16), np.cumsum([0, *map(len, encoded)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--assets", type=Path, default=Path("src/drawlot/assets"), help="the models' folder")
    parser.add_argument("--work", type=Path, default=Path(".work/tiny"), help="the work folder")
    args = parser.parse_args()
    warnings.simplefilter("ignore", Warning)

    root = Path(sysconfig.get_path("stdlib"))
    sources = read_library(root)
    training = [source for source in sources if not source.held_out]
    held_out = [source.text for source in sources if source.held_out]
    library = [source.text for source in training if source.kind == "library"]
    tests = [source.text for source in training if source.kind == "tests"]
    conversations = [chat for source in training for chat in chats(source)]

    tokenizer = train_tokenizer(library)
    for model in ("tiny", "tiny-draft"):
        save_tokenizer(tokenizer, args.assets / model)
    save_manifest(sources, args.assets / "manifest.json")
    (args.assets / "LICENSE-PSF.txt").write_bytes((root / "LICENSE.txt").read_bytes())

    args.work.mkdir(parents=True, exist_ok=True)
    streams = {
        "held_out": held_out,
        "library": library,
        "library_code": [without_docstrings(text) for text in library],
        "tests": tests,
        "chats": conversations,
    }
    arrays = {}
    for name, documents in streams.items():
        arrays[name], arrays[f"{name}_starts"] = encode(tokenizer, documents)
        size = sum(len(document.encode()) for document in documents)
        print(f"{name}: {len(documents)} documents, {size} bytes, {len(arrays[name])} tokens")
    (args.work / "held_out.json").write_text(json.dumps(held_out))
    vocabulary = tokenizer.get_vocab()
    arrays["newlines"] = np.array([vocabulary[token] for token in vocabulary if set(token) == {NEWLINE}])
    np.savez(args.work / "tokens.npz", **arrays)


if __name__ == "__main__":
    main()
