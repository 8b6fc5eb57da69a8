"""Writes conversations about Python's functions, for training and for testing.

    python examples/conversations.py FOLDER

Writes to FOLDER chats.jsonl for `instruct`, prompts.jsonl with the same questions for `prefer`, and
test.jsonl with further questions for `win-rate`. The answer to "What does str.join do?" is the
first sentence of its help.
"""

import importlib
import inspect
import json
import pathlib
import random
import sys

TYPES = (str, bytes, int, float, list, dict, set, tuple, object, type, range, slice)
MODULES = "os os.path math random itertools functools re json shutil string time statistics socket"


def first_sentence(thing):
    """Returns the first sentence of the help of a function or a method, or None."""
    text = inspect.getdoc(thing) or ""
    sentence = " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
    return f"{sentence}." if 15 < len(sentence) < 120 and "(" not in sentence[:20] else None


def main(folder):
    """Writes the three files."""
    named = {}
    for home in (*TYPES, *map(importlib.import_module, MODULES.split())):
        named |= {f"{home.__name__}.{name}": thing for name, thing in inspect.getmembers(home)}
    found = {name: first_sentence(thing) for name, thing in named.items() if callable(thing)}
    rows = [(f"What does {name} do?", answer) for name, answer in found.items() if answer]
    random.Random(0).shuffle(rows)
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"chats": rows[100:], "prompts": rows[100:], "test": rows[:100]}
    for name, part in parts.items():
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for question, answer in part:
                chat = [{"role": "user", "content": question}]
                if name == "chats":
                    chat.append({"role": "assistant", "content": answer})
                file.write(json.dumps({"messages": chat}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
