"""A person with a page: a folder with its files, in which its lines are run in their order."""

import os
import re
import shutil
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.docs import documented, world
from tests.docs.shell import Done, Shell
from transformer_jax.cli.commands import PROGRAM
from transformer_jax.cli.training import STARTS


class Reader:
    """Runs the lines of a page in the current folder.

    Args:
        page: The name of the page.
        files: The folder of :func:`.world.write`.
        shared: The fixture, for runs that other pages use too.
        monkeypatch: For standard input.
        capsys: The fixture ``capsysbinary``.
    """

    def __init__(self, page: str, files: Path, shared: Any, monkeypatch: Any, capsys: Any):
        self.page, self.files, self.shared = page, files, shared
        self.shell = Shell(monkeypatch, capsys)
        self.bucket: str | None = None
        self.taken: set[str] = set()
        self.seen: set[str] = set()
        self.known = world.MADE | world.MADE_FOR.get(page, {})
        world.place(files, page, Path.cwd())
        Path("benchmarks").symlink_to(documented.ROOT / "benchmarks")
        requests = re.findall(r'^    (\{"prompt": .*)', documented.PAGES[page].read_text(), re.M)
        Path("requests.jsonl").write_text("".join(f"{line}\n" for line in requests))
        Path(".config/fish/completions").mkdir(parents=True)  # which fish makes

    def use_bucket(self, url: str) -> None:
        """Gives the page a bucket with files for training."""
        from transformer_jax.core.storage.objects import Objects

        self.bucket = url
        for name in ("a.pt", "a.en"):
            text = Path("corpus" + name[1:]).read_bytes()
            Objects(f"{url}/{name}").write("", text)

    def read(self, line: str) -> Done:
        """Runs a line; what it reads and another page makes is made before."""
        self.need(line)
        for name in _written(line) - self.seen:  # a file that the page makes itself
            if Path(name).is_file():
                Path(name).unlink()
        self.seen |= _written(line) | {*_read(line)}
        begun = _begun(line)
        # Each row of a lecture stands for itself; a run of another page makes room.
        if begun and (begun in self.taken or self.page.startswith("lectures/")):
            shutil.rmtree(begun, ignore_errors=True)
        return self.shell(line.replace("s3://bucket", self.bucket or "s3://bucket"))

    def need(self, line: str) -> None:
        """Makes the runs and models that a line reads and that are not there."""
        for name in _read(line):
            if name not in self.known.keys() | world.MODELS.keys() or Path(name).exists():
                continue
            make = world.MODELS.get(name, partial(self.make, name))
            kept = f"documented {zlib.crc32(repr((name, self.known.get(name))).encode())}"
            shutil.copytree(self.shared(kept, make), name)
            self.taken.add(name)

    def make(self, name: str, folder: Path) -> None:
        """Makes a run in the folder of the files, and moves it."""
        here = Path.cwd()
        os.chdir(self.files)
        try:
            for command in self.known[name]:
                line = f"{PROGRAM} {command}"
                if _begun(line) and "--output" not in command:
                    line += f" --output {name}"
                self.need(line)
                shutil.rmtree(_begun(line) or name, ignore_errors=True)
                done = self.shell(line)
                assert done.code == 0, f"{line}: {done.err}"
            shutil.move(name, folder)
        finally:
            os.chdir(here)


def _written(line: str) -> set[str]:
    """The files, runs and folders that a line writes."""
    words = documented.words(line)
    found = {words[i + 1] for i, word in enumerate(words) if word in ("--output", ">")}
    return found | ({words[3]} if words[1] in ("convert", "export") else set())


def _read(line: str) -> Iterator[str]:
    """The words of a line that may be files; ``a=runs/b`` has one, too."""
    for word in documented.words(line)[1:]:
        for part in word.replace("=", ",").split(","):
            if part not in _written(line):
                yield re.sub(r"^(runs/[\w-]+)/.*", r"\1", part)


def _begun(line: str) -> str | None:
    """The run that a command of training begins; None for other commands."""
    words = documented.words(line)
    if words[1] not in STARTS and words[1:3] != ["word-vectors", "train"]:
        return None
    return words[words.index("--output") + 1] if "--output" in words else f"runs/{words[2]}"
