"""The table of doors: everything through which something from outside comes into the package.

A *door* is a way in: a reader of one format, a part of a folder, or a use of a model with its
commands and methods. ``handles`` are the names under which the package offers it, as
``tests/doors/enumerated.py`` finds them (with ``*`` for any text); a handle that no door has, and
that ``INSIDE`` does not explain, fails ``tests/doors/test_table.py``. So does a new setting, flag,
method, family, or name of a file.

The *border laws* are the files ``tests/doors/test_*.py`` with ``LAW``, the number of the law.
Such a file has for every door of its ``KINDS`` either a case or a reason why there is none:

- ``LAW``: the number; the first line of the module's docstring is the law;
- ``KINDS``: the kinds of doors that it is about;
- ``CASES``: what its tests need to try a door, by the door's name;
- ``EXEMPT``: why a door has no case, by the door's name.

Readers bring their own way of writing: ``door.write(folder, texts, form)`` writes one example for
each text in the format of the door, and ``door.read(path)`` returns the texts as the reader gives
them. A ``Form`` says how the file is written: with a byte order mark, with CRLF. Uses of models
that read a text stand in ``tests/doors/uses.py`` by the name of their door, each with a model.
"""

import dataclasses
import fnmatch
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from tests.doors import readers
from tests.doors.readers import Form

__all__ = ["DOORS", "INSIDE", "Door", "by_name", "named", "of_kind"]

Kind = Literal["reader", "folder", "use"]


@dataclasses.dataclass(frozen=True)
class Door:
    """A way in.

    Attributes:
        name: Its name in tests.
        kind: ``reader`` of files of data, ``folder`` for what a model's folder says, or ``use``:
            a command or a method that takes text, pictures or sound.
        handles: The names under which the package offers it.
        write: Writes texts as a file of this format; None where a text has no file.
        read: Reads them back as training or the command would.
    """

    name: str
    kind: Kind
    handles: tuple[str, ...]
    write: Callable[[Path, Sequence[str], Form], Path] | None = None
    read: Callable[[Path], list[str]] | None = None

    def has(self, handle: str) -> bool:
        """Returns whether a handle opens this door."""
        return any(fnmatch.fnmatchcase(handle, pattern) for pattern in self.handles)


def _reader(name: str, *handles: str, by: readers.Format | None = None) -> Door:
    return Door(name, "reader", handles, *((by.write, by.read) if by else (None, None)))


def _folder(name: str, *handles: str) -> Door:
    return Door(name, "folder", handles)


def _use(name: str, *handles: str) -> Door:
    return Door(name, "use", handles)


_PAIRS = ("PairData.pairs", "Files.pairs")
_SPLITS = ("train", "valid", "test")
_LABELED = tuple(f"LabeledData.{split}" for split in _SPLITS)
_COMPARED = tuple(f"SimilarityData.{split}" for split in _SPLITS)
_SUMMARIES = tuple(f"SummaryData.{split}" for split in _SPLITS)
_TEXT = ("TextData.text", "TextData.valid", "TextData.test")
_PREFERENCES = ("PreferenceData.train", "PreferenceData.valid")
_SPEECH = tuple(f"SpeechData.{split}" for split in _SPLITS)
_PICTURES = tuple(f"ImageData.{split}" for split in ("images", "valid", "test"))
_TYPES = (
    "model_type bart",
    "model_type bert",
    "model_type camembert",
    "model_type clip",
    "model_type deit",
    "model_type distilbert",
    "model_type electra",
    "model_type gemma",
    "model_type gemma2",
    "model_type gpt2",
    "model_type llama",
    "model_type m2m_100",
    "model_type marian",
    "model_type mbart",
    "model_type mistral",
    "model_type modernbert",
    "model_type mpnet",
    "model_type mt5",
    "model_type opt",
    "model_type pegasus",
    "model_type phi3",
    "model_type qwen2",
    "model_type qwen3",
    "model_type roberta",
    "model_type siglip",
    "model_type stablelm",
    "model_type starcoder2",
    "model_type t5",
    "model_type vision-encoder-decoder",
    "model_type vit",
    "model_type xlm-roberta",
)
_PROMPTS = ("generate --prompts", "prefer --prompts", "win-rate --prompts")

DOORS: tuple[Door, ...] = (
    # --- Readers of data ---
    _reader(
        "pairs in two aligned files",
        "PairData.source",
        "PairData.target",
        "Files.source",
        "Files.target",
        "score --source",
        "score --target",
        by=readers.ALIGNED,
    ),
    _reader("pairs as TSV", *_PAIRS, by=readers.PAIRS_TSV),
    _reader("pairs as CSV", *_PAIRS, by=readers.PAIRS_CSV),
    _reader("pairs as JSONL", *_PAIRS, by=readers.PAIRS_JSONL),
    _reader("pairs as Parquet", *_PAIRS, by=readers.PAIRS_PARQUET),
    _reader("pairs by language", *_PAIRS, by=readers.PAIRS_NAMED),
    _reader("table of pairs by language", *_PAIRS, by=readers.PAIRS_TABLE),
    _reader("texts with summaries", *_SUMMARIES, by=readers.SUMMARIES),
    _reader("texts with summaries as CSV", *_SUMMARIES, by=readers.SUMMARIES_CSV),
    _reader("documents in lines", *_TEXT, by=readers.DOCUMENT_LINES),
    _reader("documents between blank lines", *_TEXT, by=readers.DOCUMENT_BLOCKS),
    _reader("documents in files of a folder", *_TEXT, by=readers.DOCUMENT_FOLDER),
    _reader("documents as JSONL", "TextData.jsonl", *_TEXT[1:], by=readers.DOCUMENT_JSONL),
    _reader("documents as Parquet", "TextData.jsonl", *_TEXT[1:], by=readers.DOCUMENT_PARQUET),
    _reader(
        "labeled texts as TSV", *_LABELED, "probe --file", "probe --valid", by=readers.LABELED_TSV
    ),
    _reader(
        "labeled texts as CSV", *_LABELED, "probe --file", "probe --valid", by=readers.LABELED_CSV
    ),
    _reader(
        "labeled texts as JSONL",
        *_LABELED,
        "probe --file",
        "probe --valid",
        by=readers.LABELED_JSONL,
    ),
    _reader("labeled texts as Parquet", *_LABELED, by=readers.LABELED_PARQUET),
    _reader(
        "data set of Hugging Face",
        *_LABELED,
        "file dataset_dict.json",
        "file dataset_info.json",
        "file state.json",
        by=readers.DATA_SET,
    ),
    _reader("texts in a table as CSV", "classify --data", by=readers.UNLABELED_CSV),
    _reader("labeled pairs as TSV", *_LABELED, by=readers.LABELED_PAIRS),
    _reader(
        "classes of labeled texts", *_LABELED, "ExampleTokens.class_weights", by=readers.CLASSES
    ),
    _reader("numbered texts", *_LABELED, by=readers.NUMBERED),
    _reader("tagged words as CoNLL-U", *_LABELED, "probe --tag", by=readers.TAGGED_CONLLU),
    _reader("tagged words in columns", *_LABELED, "probe --tag", by=readers.TAGGED_COLUMNS),
    _reader("tagged words as GermEval", *_LABELED, "probe --tag", by=readers.TAGGED_NUMBERED),
    _reader("tagged words as CoNLL-2012", *_LABELED, "probe --tag", by=readers.TAGGED_BRACKETS),
    _reader("tagged words as JSONL", *_LABELED, "probe --tag", by=readers.TAGGED_JSONL),
    _reader("questions", *_LABELED, by=readers.QUESTIONS),
    _reader("questions in rows", *_LABELED, by=readers.QUESTION_ROWS),
    _reader("pairs with scores", *_COMPARED, by=readers.SCORED_PAIRS),
    _reader("texts with positives as CSV", *_COMPARED, by=readers.RANKED_CSV),
    _reader("texts with positives as JSONL", *_COMPARED, by=readers.RANKED_JSONL),
    _reader("preferences", *_PREFERENCES, by=readers.PREFERENCES),
    _reader("preferences as CSV", *_PREFERENCES, by=readers.PREFERENCES_CSV),
    _reader("completions with a label", *_PREFERENCES, by=readers.RATED),
    _reader("prompts to learn from", *_PREFERENCES, by=readers.PROMPTS),
    _reader("conversations", "ChatData.train", "ChatData.valid", by=readers.CONVERSATIONS),
    _reader("prompts with completions", "ChatData.train", "ChatData.valid", by=readers.ANSWERS),
    _reader("completions as CSV", "ChatData.train", "ChatData.valid", by=readers.ANSWERS_CSV),
    _reader("recordings as TSV", *_SPEECH, by=readers.SPEECH_TSV),
    _reader("recordings as CSV", *_SPEECH, by=readers.SPEECH_CSV),
    _reader("recordings as JSONL", *_SPEECH, by=readers.SPEECH_JSONL),
    _reader("pictures in class folders", *_PICTURES, by=readers.PICTURE_FOLDERS),
    _reader("pictures in a TSV table", *_PICTURES, by=readers.PICTURE_TSV),
    _reader("pictures in a CSV table", *_PICTURES, by=readers.PICTURE_CSV),
    _reader("captions of Flickr8k", *_PICTURES, "file captions.txt", by=readers.FLICKR),
    _reader("captions of COCO", *_PICTURES, by=readers.COCO),
    _reader("pictures in a JSONL table", *_PICTURES, by=readers.PICTURE_JSONL),
    _reader("pictures in arrays", *_PICTURES, by=readers.PICTURE_ARRAYS),
    _reader(
        "data sets of TensorFlow",
        "*.tfds",
        "*.tfds_dir",
        "file dataset_info.json",
    ),
    _reader("text for word vectors", "Train.texts", "word-vectors train", by=readers.WORDS),
    _reader(
        "word vectors",
        "EmbeddingConfig.init",
        "RecurrentEmbeddingConfig.init",
        "analogy --vectors",
        "most-similar --vectors",
        "file vectors.bin",
        by=readers.VECTORS,
    ),
    _reader(
        "word vectors of GloVe",
        "EmbeddingConfig.init",
        "RecurrentEmbeddingConfig.init",
        "analogy --vectors",
        "most-similar --vectors",
        by=readers.GLOVE,
    ),
    _reader("analogy questions", "analogy --questions", by=readers.ANALOGIES),
    _reader("similar words", "most-similar --pairs", by=readers.SIMILARITIES),
    _reader("demonstrations", "prompt --examples", "prompt --queries"),
    _reader("rewards and rules of users", "RewardConfig.file", "prefer --rule", "win-rate --rule"),
    _reader("prompts in lines or JSONL", *_PROMPTS),
    _reader("requests", "generate --requests"),
    _reader(
        "lines of text",
        "translate --input",
        "score --text",
        "embed --file",
        "semantic-search --file",
        "diversity --file",
        "compare-tokenizers --file",
        "compare-tokenizers --test",
        "answer --context",
        "caption --input",
        by=readers.LINES,
    ),
    _reader("results of benchmarks", "report --results"),
    _reader(
        "outputs with references",
        "score-file",
        "score-file --outputs",
        "score-file --references",
        "compare",
        "compare --first",
        "compare --second",
        "compare --references",
    ),
    # --- Folders of models ---
    _folder("weights", "file model.safetensors", "file model.safetensors.index.json"),
    _folder("configuration of a model", "file config.json", *_TYPES),
    _folder(
        "tokenizer",
        "file tokenizer.json",
        "file vocab.json",
        "file vocab.txt",
        "file merges.txt",
        "file added_tokens.json",
        "file special_tokens_map.json",
        "compare-tokenizers --tokenizers",
        "TokenizerConfig.path",
        "tokenize --run",
    ),
    _folder(
        "SentencePiece",
        "file sentencepiece.bpe.model",
        "file spiece.model",
        "file spm.model",
        "file tokenizer.model",
    ),
    _folder("settings of a tokenizer", "file tokenizer_config.json"),
    _folder("settings of generation", "file generation_config.json"),
    _folder("processor of pictures", "file preprocessor_config.json", "file processor_config.json"),
    _folder(
        "sentence encoder",
        "file modules.json",
        "file sentence_bert_config.json",
        "file config_sentence_transformers.json",
    ),
    _folder(
        "chat template",
        "file chat_template.jinja",
        "file chat_template.json",
        "chat --template",
        "ChatConfig.template",
    ),
    _folder(
        "adapter",
        "file adapter_config.json",
        "file adapter_model.safetensors",
        "generate --adapter",
        "chat --adapter",
        "merge --adapter",
        "LanguageModelPredictor.with_adapters",
    ),
    _folder(
        "run",
        "* --run",
        "* --runs",
        "win-rate --other",
        "compare --first",
        "compare --second",
        "Resume.output",
        "resume",
        "evaluate",
        "glue",
        "StartConfig.init_from",
        "CaptionRun.init_encoder",
        "RewardConfig.run",
        "convert --folder",
        "verify",
        "describe",
        "doctor",
        "report",
        "convert",
        "export",
        "merge",
        "spectrum",
        "word-vectors resume",
        "file manifest.json",
        "file state.safetensors",
        "file metrics.jsonl",
        "file lock.json",
        "file results.json",
        "file ngram.npz",
        "file export.json",
    ),
    _folder("plan of a run", "launch", "launch --*", "describe --plan", "describe --preset"),
    # --- Uses of models ---
    _use(
        "translate",
        "translate",
        "TranslationPredictor.__call__",
        "TranslationPipeline.__call__",
        "SummarizationPipeline.__call__",
        "TextToTextPipeline.__call__",
        "translate --from-language",
        "translate --to",
    ),
    _use("embed a translator's sources", "TranslationPredictor.embed"),
    _use("score translations", "TranslationPredictor.score", "score"),
    _use(
        "look at attention",
        "attention",
        "attention --sentence",
        "attention --target",
        "*.attention",
        "*.capture",
        "*.explore",
        "explore",
        "explore --text",
    ),
    _use(
        "generate",
        "generate",
        "generate --prompt",
        "generate --stop",
        "LanguageModelPredictor.generate",
        "LanguageModelPredictor.__call__",
        "LanguageModelPredictor.stream",
        "TextGenerationPipeline.__call__",
    ),
    _use("chat", "chat", "chat --system", "chat --stop", "LanguageModelPredictor.chat"),
    _use("score texts", "LanguageModelPredictor.score", "score"),
    _use("compare samples", "prefer", "win-rate", "diversity"),
    _use(
        "few-shot prompts",
        "prompt",
        "prompt --template",
        "prompt --answer-template",
        "prompt --header",
        "prompt --choices",
    ),
    _use(
        "classify texts",
        "classify",
        "classify --texts",
        "ClassificationPredictor.__call__",
        "RegressionPredictor.__call__",
        "TextClassificationPipeline.__call__",
        "ZeroShotClassificationPipeline.__call__",
    ),
    _use("rank texts", "semantic-search --rerank", "_TextTask.rank"),
    _use("reward texts", "classify", "RewardPredictor.__call__"),
    _use("tag words", "tag", "tag --texts", "TaggingPredictor.__call__"),
    _use("tag tokens", "TokenClassificationPipeline.__call__"),
    _use("find answers", "QuestionAnsweringPipeline.__call__"),
    _use("answer questions", "answer", "answer --questions", "QuestionAnsweringPredictor.__call__"),
    _use(
        "fill masks",
        "fill-mask",
        "fill-mask --texts",
        "EncoderPredictor.fill_mask",
        "FillMaskPipeline.__call__",
    ),
    _use(
        "embed texts",
        "embed",
        "embed --prompt",
        "embed --prompt-name",
        "Embedding.embed",
        "_Task.embed",
        "FeatureExtractionPipeline.__call__",
        "probe",
    ),
    _use("search texts", "semantic-search", "semantic-search --query"),
    _use(
        "compare vectors of a word",
        "word-vectors",
        "word-vectors --word",
        "word-vectors --sentences",
    ),
    _use(
        "transcribe",
        "transcribe",
        "transcribe --files",
        "SpeechPredictor.__call__",
        "SpeechRecognitionPipeline.__call__",
    ),
    _use(
        "caption",
        "caption",
        "caption --images",
        "CaptionPredictor.__call__",
        "CaptionPredictor.heat_maps",
        "CaptionPredictor.picture",
        "CaptionPredictor.pixels",
        "CaptionPredictor.read",
        "ImageToTextPipeline.__call__",
    ),
    _use(
        "classify pictures",
        "classify",
        "ImagePredictor.__call__",
        "ImagePredictor.probabilities",
        "ImagePredictor.scores",
        "ImagePredictor.logits",
        "ImageClassificationPipeline.__call__",
    ),
    _use(
        "embed pictures",
        "embed",
        "ImagePredictor.embed",
        "ImageTextPredictor.embed_images",
        "semantic-search --images",
    ),
    _use(
        "match pictures and texts",
        "classify --labels",
        "classify --template",
        "ImageTextPredictor.__call__",
        "ImageTextPredictor.embed_texts",
        "ImageTextPredictor.probabilities",
        "ImageTextPredictor.recalls",
    ),
    _use(
        "tokenize",
        "tokenize",
        "tokenize --texts",
        "compare-tokenizers",
        "bpe-merges",
        "bpe-merges --text",
    ),
    _use(
        "words of word vectors",
        "analogy",
        "analogy --words",
        "most-similar",
        "most-similar --words",
        "most-similar --without",
    ),
)

# Handles that open no door, and why.
INSIDE: dict[str, tuple[str, ...]] = {
    "where something is written": (
        "Trained.output",
        "NgramRun.output",
        "Train.output",
        "* --output",
        "* --json",
        "* --beam-tree",
        "* --heat-maps",
        "* --pictures",
        "launch --log-dir",
        "LoopConfig.profile",
        "*.cache",
        "* --engine-cache",
    ),
    "a name that is looked up among known ones": (
        "* --checkpoint",
        "* --layers",
        "* --from-language",
        "* --to",
        "LoopConfig.best_checkpoint_metric",
        "LoRAConfig.targets",
        "MixerConfig.kind",
        "StartConfig.freeze",
        "analogy --section",
        "lecture --rows",
        "lecture",
        "check",
        "check --words",
        "DistributedConfig.coordinator_address",
        "classify --text",
        "classify --text-pair",
        "probe --label",
        "probe --text",
        "prompt --match-field",
        "LabeledOptions.*",
        "SimilarityOptions.*",
        "ImageReadOptions.*",
        "*Options.fields",
        "TextOptions.field",
    ),
    "text of the user for the model itself": (
        "*Options.source_prefix",
        "TokenizerConfig.add_*",
        "StartConfig.trainable_tokens",
        "StartConfig.tokens_like",
        "TaskConfig.labels",
        "ImageTask.labels",
    ),
    "trains: its readers are doors of their own": (
        "train",
        "pretrain",
        "finetune",
        "train-speech",
        "instruct",
        "align",
    ),
    "computes from its own settings": ("laboratory", "complexity", "completion"),
    "takes what an open door has prepared": (
        "CaptionPredictor.follows_folder",
        "CaptionPredictor.search",
        "DirectedPredictor.directions",
        "_TextTask.sides",
    ),
    "a store that the package writes and checks by its own checksums": (
        "file store.json",
        "file data.jsonl",
    ),
}


def of_kind(*kinds: Kind) -> tuple[Door, ...]:
    """The doors of these kinds."""
    return tuple(door for door in DOORS if door.kind in kinds)


def by_name(name: str) -> Door:
    """The door of a name."""
    return next(door for door in DOORS if door.name == name)


def named(handle: str) -> list[str]:
    """The names of the doors that a handle opens, or the reason why it opens none."""
    return [door.name for door in DOORS if door.has(handle)] or [
        why
        for why, patterns in INSIDE.items()
        if any(fnmatch.fnmatchcase(handle, pattern) for pattern in patterns)
    ]
