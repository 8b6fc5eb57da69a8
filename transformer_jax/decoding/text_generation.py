"""Texts from prompts: what neural and n-gram language models share."""

import abc
import collections
from collections.abc import Iterator, Sequence

from transformer_jax.decoding.requests import Continuation, GenerationRequest, numbered
from transformer_jax.decoding.text_tokenizer import TextTokenizer
from transformer_jax.decoding.writing import GenerationSequence, stable_prefix

__all__ = ["Found", "TextGenerator"]

# Continuations by the index of their request and their place among its samples or beams.
Found = dict[tuple[int, int], Continuation]


class TextGenerator(abc.ABC):
    """Requests to texts: samples, batches, beams, streaming, stop strings and finish reasons.

    A subclass says which tokens its model reads of a prompt, which sequences go together, and how
    a batch of them is generated or searched.

    Attributes:
        tokenizer: Tokenizer of the model's training.
    """

    tokenizer: TextTokenizer

    @abc.abstractmethod
    def prompt_tokens(self, prompt: str) -> list[int]:
        """The tokens that the model reads of a prompt."""

    @abc.abstractmethod
    def batches(
        self, sequences: Sequence[GenerationSequence]
    ) -> Iterator[list[GenerationSequence]]:
        """Which sequences are generated together; all have ``num_beams`` in common."""

    @abc.abstractmethod
    def extend(self, batch: list[GenerationSequence], streaming: bool = False) -> Iterator[None]:
        """Generates the tokens of a batch to their ends.

        Args:
            batch: Sequences that are sampled or greedy.
            streaming: Whether the caller reads the texts each time that this yields.
        """

    @abc.abstractmethod
    def search(self, batch: list[GenerationSequence]) -> Found:
        """The ``nbest`` continuations of each sequence by beam search."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Continuation]]:
        """The continuations of each prompt: ``num_return_sequences``, or ``nbest``, best first.

        What is sampled depends on the seed, the number of the request and that of the sample.

        Raises:
            DataError: The model refuses a prompt.
            NumericsError: The model computed NaN or infinity.
        """
        sampled, searched = [], collections.defaultdict(list)
        for index, request in enumerate(numbered(requests)):
            for sequence in self.sequences(request, index):
                if request.num_beams == 1:
                    sampled.append(sequence)
                else:
                    searched[request.num_beams, request.nbest].append(sequence)
        found: Found = {}
        for batch in self.batches(sampled):
            collections.deque(self.extend(batch), maxlen=0)
            found |= {(one.index, one.sample): one.done() for one in batch}
        for alike in searched.values():
            for batch in self.batches(alike):
                found |= self.search(batch)
        texts: list[list[Continuation]] = [[] for _ in requests]
        for index, place in sorted(found):
            texts[index].append(found[index, place])
        return texts

    def stream(self, request: GenerationRequest) -> Iterator[str]:
        """The first continuation in parts, each as soon as nothing can change it.

        Beam search yields its best text when it is over.
        """
        sequence = next(self.sequences(request, 0))
        if request.num_beams > 1:
            yield self.search([sequence])[0, 0].text
            return
        sent = 0
        for _ in self.extend([sequence], streaming=True):
            text = stable_prefix(sequence.text, request.stop)
            if len(text) > sent:
                yield text[sent:]
                sent = len(text)
        if len(sequence.text) > sent:
            yield sequence.text[sent:]

    def sequences(self, request: GenerationRequest, index: int) -> Iterator[GenerationSequence]:
        """One sequence for each sample of a request, before its first token.

        Raises:
            DataError: The model refuses the prompt.
        """
        read = self.prompt_tokens(request.prompt)
        shown = self.tokenizer.decode(read)
        for sample in range(request.num_return_sequences):
            yield GenerationSequence(request, index, sample, list(read), self.tokenizer, shown)
