"""Small language models that runs of tests start from, and the texts that they read."""

WORDS = ["um", "dois", "três", "quatro", "cinco", "seis", "sete", "oito", "nove", "dez"]
ALONE = ["--distributed.num-local-devices", "1"]
SHORT = [
    "--training.steps", "4", "--optimizer.schedule.warmup-steps", "1", "--loop.evaluate-every", "2",
    "--loop.checkpoint-every", "2", *ALONE,
]  # fmt: skip
WIDTHS = [
    "--model.d-model", "16", "--model.attention.num-heads", "2", "--model.feed-forward.d-ff", "32",
    "--model.positions.max-length", "64", "--model.decoder-layers", "2",
]  # fmt: skip
LANGUAGE = [
    "train", "char-cpu", *SHORT, "--data.text", "{texts}/all.txt", "--data.read.documents", "line",
    "--training.layout", "packed", "--training.batch-size", "8", "--training.sequence-length", "16",
    "--evaluation.sample", "0", "--evaluation.ngram-orders",
]  # fmt: skip


def write_texts(folder):
    """Writes ``all.txt``."""
    folder.mkdir()
    lines = [f"{a} {b}" for a in WORDS for b in WORDS[:6]]
    (folder / "all.txt").write_text("".join(f"{line}\n" for line in lines))


def run_of(program, command, texts, output, *more):
    """The run that a command made, which must succeed."""
    given = [word.format(texts=texts) for word in command]
    assert program.main([*given, "--output", str(output), *more]) == 0
    return output
