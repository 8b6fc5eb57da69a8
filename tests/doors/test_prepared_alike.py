"""Prepared alike: a text in any form of Unicode and of files arrives as the same tokens.

The forms are a decomposed text, a byte order mark, CRLF, and blanks of any kind at its ends. Where
blanks are part of what a model learns, the other forms hold.
"""

import unicodedata

import numpy as np
import pytest

import transformer_jax as tj
from tests.doors import table, uses
from tests.doors.readers import Form
from transformer_jax.word_vectors.formats import load_embeddings

LAW = 1
KINDS = ("reader", "use")

# Composed, with letters whose marks compose, do not compose, and are put in order.
TEXTS = ["été à Genève", "ḍ̇ et क़िताब", "가나다 ñ", "ångström"]
PLAIN = Form()
FORMS = {
    "decomposed": (lambda text: unicodedata.normalize("NFD", text), PLAIN),
    "byte order mark": (str, Form(bom=True)),
    "CRLF": (str, Form(end="\r\n")),
}
BLANKS = {
    "blanks": (lambda text: f"  {text} ", PLAIN),
    "no-break blanks": (lambda text: f"\u00a0{text}\u202f", PLAIN),
    "ideographic blanks": (lambda text: f"\u3000{text}\u2003", PLAIN),
    "zero-width blanks": (lambda text: f"\ufeff{text}\u200b", PLAIN),
    "all": (
        lambda text: f"\u00a0 {unicodedata.normalize('NFD', text)}\u3000",
        Form(bom=True, end="\r\n"),
    ),
}
EXEMPT = {
    "data sets of TensorFlow": "rows of a library: read with the preparation of lines of a file",
    "demonstrations": "fields of a template, which the line of a request prepares",
    "rewards and rules of users": "code of the user, whose texts are prepared before",
    "prompts in lines or JSONL": "read by the reader of prompts to learn from, or of lines",
    "requests": "a JSON object with settings, whose prompt is prepared as on the command line",
    "results of benchmarks": "written by the package: no text of a user",
    "look at attention": "shows the tokens of the text that the encoder of texts prepares",
    "compare samples": "samples of generate, whose prompts that use prepares",
    "few-shot prompts": "fills a template and generates: the prompt is what the user wrote",
    "compare vectors of a word": "finds a word of a sentence as the user wrote it",
    "transcribe": "takes sound",
    "caption": "takes pictures",
    "classify pictures": "takes pictures",
    "embed pictures": "takes pictures",
    "match pictures and texts": "needs two towers; its texts pass the reader of lines",
    "words of word vectors": "words are found by canonically equal ones: see the reader's case",
}
