"""Prompts from files that the embedded models were not trained on: modules of the standard library, by name."""

import hashlib
import json
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import drawlot.assets
from drawlot.errors import InputError

FILES = (
    "codecs.py",
    "email/generator.py",
    "email/header.py",
    "functools.py",
    "imaplib.py",
    "pickletools.py",
    "traceback.py",
    "xml/dom/minidom.py",
)


class HeldOut(NamedTuple):
    """A file of this Python's standard library."""

    name: str
    text: str
    as_held_out: bool
    """Its bytes are those that the manifest of the embedded models names; another version of Python has others"""


def held_out(name: str) -> HeldOut:
    """Read a file.

    Raises:
        InputError: The manifest does not name the file as held out, or this Python has none.
    """
    manifest = json.loads(Path(drawlot.assets.__file__).with_name("manifest.json").read_text())["held_out"]
    if name not in manifest:
        raise InputError(f"{name}: not one of the files that the embedded models were not trained on")
    file = Path(sysconfig.get_path("stdlib"), name)
    if not file.is_file():
        raise InputError(f"{name}: this Python's standard library has no such file")
    data = file.read_bytes()
    return HeldOut(name, data.decode(), hashlib.sha256(data).hexdigest() == manifest[name])


def prompts_from(files: list[HeldOut], tokenizer: Any, count: int, num_tokens: int) -> list[list[int]]:
    """`count` prompts of num_tokens tokens, taken from the files in turn, evenly spread over each; they begin a line.

    Raises:
        InputError: A file is too short.
    """
    prompts = []
    for index in range(count):
        file, part = files[index % len(files)], index // len(files)
        parts = -(-(count - index % len(files)) // len(files))
        start = file.text.rfind("\n", 0, len(file.text) * part // parts) + 1
        # No token has fewer than one character; most have several.
        ids = tokenizer.encode(file.text[start : start + 16 * num_tokens], add_special_tokens=False)[:num_tokens]
        if len(ids) < num_tokens:
            raise InputError(f"{file.name}: too short for {parts} prompts of {num_tokens} tokens")
        prompts.append(ids)
    return prompts
