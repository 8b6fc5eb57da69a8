"""Generated texts on standard output: plain, as a table, or as JSON lines."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from transformer_jax.cli.output import tsv

if TYPE_CHECKING:
    from transformer_jax.decoding.requests import Continuation, GenerationRequest

__all__ = ["Writer"]


class Writer:
    """Writes the texts of each prompt.

    Args:
        form: ``plain`` is each prompt with its text, with a header line if there are several;
            ``tsv`` is a row per text; ``json`` is an object per prompt.
        several: Whether there is more than one text.
    """

    def __init__(self, form: Literal["plain", "tsv", "json"], several: bool):
        self.form, self.several, self.prompts = form, several, 0

    def __call__(self, request: "GenerationRequest", found: "Sequence[Continuation]") -> None:
        """Writes the continuations of a prompt; those of beam search are sorted, best first."""
        if self.form == "json":
            self._json(request, found)
        else:
            texts = [(one.text, one.log_prob) for one in found]
            self.texts(request.prompt, texts, ranked=request.num_beams > 1)

    def texts(self, prompt: str, found: Sequence[tuple[str, float]], ranked: bool = False) -> None:
        """Writes texts that follow ``prompt``, each with its score, a log-probability.

        Args:
            prompt: The prompt.
            found: The texts, without the prompt.
            ranked: Whether the texts are sorted, best first.
        """
        self.prompts += 1
        out, kind = sys.stdout.buffer, "rank" if ranked else "sample"
        if self.form == "tsv" and self.prompts == 1:
            # One header serves the rows of all requests, sampled or from beam search.
            out.write(tsv("prompt", "sequence", "score", "text"))
        for number, (text, score) in enumerate(found, 1):
            if self.form == "tsv":
                out.write(tsv(self.prompts, number, float(score), text))
                continue
            if self.several:
                which = f", {kind} {number}" if len(found) > 1 else ""
                worth = f", score {score:.4f}" if ranked else ""
                out.write(f"--- prompt {self.prompts}{which}{worth} ---\n".encode())
            out.write((prompt + text).encode() + b"\n")
        out.flush()

    def _json(self, request: "GenerationRequest", found: "Sequence[Continuation]") -> None:
        texts = [
            {
                "text": one.text,
                "log_prob": one.log_prob,
                "tokens": len(one.tokens),
                "finish_reason": one.finish_reason,
            }
            for one in found
        ]
        asked: dict[str, Any] = {"prompt": request.prompt}
        if request.messages is not None:
            asked = {"messages": list(request.messages)}
        if request.adapter is not None:
            asked["adapter"] = request.adapter
        line = json.dumps(asked | {"texts": texts}, ensure_ascii=False)
        sys.stdout.buffer.write(line.encode() + b"\n")
        sys.stdout.buffer.flush()
