"""The blanks of the exercises: a name, arguments, a formula, shapes and the paper.

`transformer-jax check --blank NAME` prints one. `...` is what the reader writes, in JAX or NumPy.
Masks are True where a query may look. Arguments of an answer may stand in another order.
"""

# mypy: disable-error-code="empty-body, no-untyped-def"

__all__ = [
    "adam_step",
    "additive_score",
    "attention",
    "beam",
    "block",
    "bpe_merge",
    "brevity_penalty",
    "cache_step",
    "dpo_loss",
    "greedy",
    "layer_norm",
    "lora_merge",
    "mask",
    "mask_words",
    "multi_head",
    "next_sentences",
    "rnn_step",
    "shift_right",
    "sinusoids",
    "smooth_loss",
    "softmax",
    "token_loss",
    "top_p",
    "wordpiece",
]


def softmax(scores, mask):
    """Computes the weights of the visible keys: exp(s) / Σ exp(s) over the last axis.

    scores: [..., T S], up to 10,000 in size. mask: [..., T S]. Returns [..., T S]; a query that
    sees no key has weights of zero.
    Vaswani et al. 2017, section 3.2.1.
    """
    ...


def attention(q, k, v, mask):
    """Computes softmax(q kᵀ / √H) v, scaled dot-product attention.

    q: [..., T H]. k: [..., S H]. v: [..., S U]. mask: [..., T S]. Returns [..., T U]; a query that
    sees no key gets zeros.
    Vaswani et al. 2017, section 3.2.1, equation 1.
    """
    ...


def additive_score(q, k, w_q, w_k, v):
    """Computes vᵀ tanh(W_q q + W_k k) of each query and key, before any softmax.

    q: [T H]. k: [S J]. w_q: [H A]. w_k: [J A]. v: [A]. Returns [T S].
    Bahdanau et al. 2015, appendix A.1.2.
    """
    ...


def mask(real, causal):
    """Computes which keys each query may see: words, not padding, and no later ones if causal.

    real: [B T], True at words. causal: True or False. Returns booleans [B 1 T T], or [B 1 1 T] if
    not causal, with an axis for heads.
    Vaswani et al. 2017, section 3.2.3.
    """
    ...


def sinusoids(length, width):
    """Computes sin(t / 10000^(2i/D)) in column 2i, cos of the same angle in 2i + 1.

    Positions t begin at 0, D is the width, an even number. Returns [length width].
    Vaswani et al. 2017, section 3.5.
    """
    ...


def layer_norm(x, gain, bias, eps):
    """Computes (x - mean) / √(variance + ε) · gain + bias of each vector.

    x: [..., D]. gain, bias: [D]. The variance is that of the population. Returns [..., D].
    Ba et al. 2016, section 3.
    """
    ...


def multi_head(x, memory, mask, w, b):
    """Computes Concat(head₁ … head_N) W^O, each head attending with its own maps.

    x: [B T D], for queries. memory: [B S D], for keys and values. mask: [B 1 T S]. w holds "q", "k"
    and "v" [D N H] and "o" [N H D]; b holds their biases [N H] and [D]. Returns [B T D].
    Vaswani et al. 2017, section 3.2.2.
    """
    ...


def block(x, sublayers, norms, placement):
    """Adds each sub-layer's output to its input, with a norm each.

    placement "post": norm(x + f(x)); "pre": x + f(norm(x)). sublayers and norms are lists of
    functions of x, one norm for each sub-layer, applied in order. x: [B T D]. Returns [B T D].
    Vaswani et al. 2017, section 3.1; Xiong et al. 2020, section 3.
    """
    ...


def shift_right(tokens, bos):
    """Makes the decoder's inputs: each token one place later, behind the first token.

    tokens: integers [B T]. bos: the first token. Returns [B T].
    Vaswani et al. 2017, section 3.1.
    """
    ...


def smooth_loss(logits, targets, smoothing):
    """Computes -Σ q log softmax(logits) at each position.

    q gives 1 - smoothing to the target and spreads smoothing evenly over all V tokens, the target
    too. logits: [..., V], up to 10,000 in size. targets: integers [...]. Returns [...].
    Szegedy et al. 2015, section 7; Vaswani et al. 2017, section 5.4.
    """
    ...


def token_loss(losses, real):
    """Computes the sum of the losses at words and the number of words, to divide once.

    losses: [B T], which may be anything at padding. real: [B T]. Returns (sum, number).
    Bishop and Bishop 2024, section 12.3.1.
    """
    ...


def adam_step(w, gradient, m, v, step, d_model, warmup):
    """Makes step 1, 2, ... of Adam with the learning rate of the paper.

    m ← β₁ m + (1 - β₁) g, v ← β₂ v + (1 - β₂) g², both divided by 1 - βᵗ of their own β, then
    w ← w - rate · m̂ / (√v̂ + ε), where rate = D^-½ · min(step^-½, step · warmup^-1½), β₁ = 0.9,
    β₂ = 0.98, ε = 1e-9. Arrays of one shape. Returns (w, m, v), m and v before the division.
    Kingma and Ba 2015, algorithm 1; Vaswani et al. 2017, section 5.3.
    """
    ...


def greedy(next_logits, bos, eos, limit):
    """Chooses the most probable token again and again.

    next_logits: function from a list of prefixes of one length, each a list of tokens that begins
    with bos, to logits [prefixes V]. Returns the tokens after bos, up to the first eos, which is
    the last of them, or `limit` tokens.
    Bishop and Bishop 2024, section 12.3.2.
    """
    ...


def beam(next_logits, bos, eos, limit, beams, alpha):
    """Finds the text with the largest log p / ((5 + length) / 6)^alpha.

    next_logits: as for greedy. Of all continuations of the live prefixes, those by eos among the
    `beams` best are finished, and the `beams` best others live on. With `limit` tokens a text ends,
    by eos alone. The length counts eos. Returns (tokens after bos, score); stop early only where no
    live prefix can overtake.
    Wu et al. 2016, section 7, equation 14.
    """
    ...


def cache_step(q, k, v, cache):
    """Attends with the query of one new token to all tokens so far.

    q, k: [N H], v: [N U], of the new token. cache: keys [N t H] and values [N t U] of the t tokens
    before it, none at first. Returns ([N U], (keys [N t+1 H], values [N t+1 U])).
    Shazeer 2019, section 2.4.
    """
    ...


def top_p(logits, p):
    """Forbids all but the fewest most probable tokens whose probabilities reach p.

    logits: [V]. Returns [V]: logits of the tokens that stay, -inf elsewhere; one stays at least.
    Holtzman et al. 2019, section 3.1.
    """
    ...


def bpe_merge(words):
    """Makes one merge of byte-pair encoding.

    words: how often each word occurs, a word being a tuple of symbols: {("p", "e", "ck"): 2}. Among
    equally frequent pairs of neighbours the smallest is merged. Returns (pair, words with it
    merged).
    Sennrich et al. 2016, section 3.2.
    """
    ...


def wordpiece(word, vocabulary):
    """Cuts a word into the longest pieces that the vocabulary has, from the left.

    Pieces after the first begin with "##". vocabulary: a set. Returns a list of pieces, or
    ["[UNK]"] for the whole word if a rest begins with none of them.
    Devlin et al. 2019, section 3; Wu et al. 2016, section 4.1.
    """
    ...


def mask_words(tokens, special, chance, kind, others, mask_id):
    """Corrupts tokens as BERT does, from given random numbers.

    Where chance < 0.15 and the token is not special, it is to be predicted: it becomes mask_id
    where kind < 0.8, the token of others where 0.8 ≤ kind < 0.9, and stays otherwise. All arrays
    are [B T]. Returns (inputs, booleans: to be predicted).
    Devlin et al. 2019, section 3.1, task 1.
    """
    ...


def next_sentences(documents, coins, picks):
    """Makes pairs for next-sentence prediction, from given random numbers.

    documents: lists of sentences. The n-th pair of neighbours (a, b), counted over all documents,
    gives (a, b, True) if coins[n] < 0.5, else (a, other, False), where other is sentence picks[n]
    of all sentences of the other documents in order, counted on from the start beyond the last.
    Returns a list.
    Devlin et al. 2019, section 3.1, task 2.
    """
    ...


def lora_merge(w, a, b, alpha):
    """Computes w + alpha / r · a b, the map with its adapter merged.

    w: [D F]. a: [D r]. b: [r F]. Returns [D F].
    Hu et al. 2021, section 4.1.
    """
    ...


def dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta):
    """Computes -log σ(β ((chosen - ref_chosen) - (rejected - ref_rejected))) of each pair.

    All are log-probabilities of whole texts [B], down to -100,000. Returns [B].
    Rafailov et al. 2023, equation 7.
    """
    ...


def brevity_penalty(candidates, references):
    """Computes BLEU's factor for short texts: 1 if c > r, else exp(1 - r / c).

    candidates: a list of texts, each a list of words. references: for each candidate, a list of
    texts. c is the number of words of all candidates, r the sum of the lengths of the references
    nearest in length to each candidate; of two as near, the shorter. Without words it is 0.
    Papineni et al. 2002, section 2.2.2.
    """
    ...


def rnn_step(h, x, memory, mask, w):
    """Makes one step of a recurrent decoder that attends first.

    weights = softmax over the visible j of w["score"]ᵀ tanh(h w["query"] + memory_j w["key"]);
    context = Σ weights_j memory_j; new h = tanh(x w["x"] + h w["h"] + context w["c"] + w["b"]).
    h: [D]. x: [E]. memory: [S C]. mask: [S]. Returns (new h, weights [S]).
    Bahdanau et al. 2015, section 3.1 and appendix A.1.2.
    """
    ...
