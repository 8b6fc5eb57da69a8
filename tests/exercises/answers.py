"""An answer to each exercise, and eight typical mistakes: a change of its text, and its cause.

The mistakes are those of questions and of repositories: reversed masks, a softmax over the wrong
axis, a missing scale, shifted limits, labels the other way round.
"""

__all__ = ["ANSWERS"]

ANSWERS = {
    "softmax": (
        """
def softmax(scores, mask):
    hidden = ~mask
    scores = np.where(hidden, -1e30, scores)
    e = np.exp(scores - scores.max(-1, keepdims=True)) * ~hidden
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)
""",
        [
            ("hidden = ~mask", "hidden = mask", "reversed"),
            (" * ~hidden", "", "a query that sees no key gets equal weights"),
            ("-1e30", "-np.inf", "divides zero by zero"),
            ("-1, keepdims", "-2, keepdims", "over queries"),
            ("scores = np.where(hidden, -1e30, scores)\n    ", "", "hide scores first"),
            (" - scores.max(-1, keepdims=True)", "", "overflow"),
            ("return e / np.where(total == 0, 1, total)", "return e", "division by the sum"),
            ("return e", "return np.log(e", "logarithm"),
        ],
    ),
    "attention": (
        """
def attention(q, k, v, mask):
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    hidden = ~mask
    s = np.where(hidden, -1e30, s)
    w = np.exp(s - s.max(axis=-1, keepdims=True)) * ~hidden
    w = w / np.maximum(w.sum(axis=-1, keepdims=True), 1e-30)
    return w @ v
""",
        [
            (" / np.sqrt(q.shape[-1])", "", "division by √H is missing"),
            ("np.sqrt(q.shape[-1])", "q.shape[-1]", "divided by H instead"),
            ("np.sqrt(q.shape[-1])", "np.sqrt(k.shape[-2])", "number of keys"),
            ("hidden = ~mask", "hidden = mask", "reversed"),
            ("hidden = ~mask", "hidden = mask & False", "mask is not used"),
            ("return w @ v", "return w", "these are the weights"),
            (" * ~hidden", "", "mean of the values"),
            ("s - s.max(axis=-1, keepdims=True)", "s", "overflow"),
        ],
    ),
    "mask": (
        """
def mask(real, causal):
    T = real.shape[1]
    seen = real[:, None, None, :]
    return seen & np.tril(np.ones((T, T), bool)) if causal else seen
""",
        [
            ("np.tril", "np.triu", "the future is visible"),
            ("np.ones((T, T), bool)", "np.ones((T, T), bool), -1", "diagonal"),
            (
                "real[:, None, None, :]",
                "real[:, None, :, None] & np.ones((1, 1, 1, T), bool)",
                "queries at padding are hidden instead",
            ),
            ("seen & np", "seen | np", "joined by or"),
            ("real[:, None, None, :]", "~real[:, None, None, :]", "padding is True"),
            (
                "seen & np.tril(np.ones((T, T), bool)) if causal else seen",
                "seen",
                "causal is not used",
            ),
            (
                "seen & np.tril(np.ones((T, T), bool)) if causal else seen",
                "seen & np.tril(np.ones((T, T), bool))",
                "always causal",
            ),
            ("    return ", "    return ~(", "reversed"),
        ],
    ),
    "sinusoids": (
        """
def sinusoids(length, width):
    t, i = np.arange(length)[:, None], np.arange(width // 2)
    angle = t / 10000 ** (2 * i / width)
    table = np.zeros((length, width))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)
    return table
""",
        [
            (
                "table[:, 0::2] = np.sin(angle)\n    table[:, 1::2] = np.cos(angle)",
                "table[:, 1::2] = np.sin(angle)\n    table[:, 0::2] = np.cos(angle)",
                "swapped",
            ),
            ("2 * i / width", "i / width", "exponent is i / D"),
            ("np.arange(length)[:, None]", "np.arange(1, length + 1)[:, None]", "begin at 1"),
            ("10000", "1000", "base is 1,000"),
            ("np.cos", "np.sin", "all columns are sines"),
            (
                "return table",
                "return np.concatenate([np.sin(angle), np.cos(angle)], 1)",
                "all sines stand before",
            ),
            ("t / 10000", "t * 10000", "product"),
            ("return table", "return table.T", "axes are swapped"),
        ],
    ),
    "layer_norm": (
        """
def layer_norm(x, gain, bias, eps):
    mean = x.mean(axis=-1, keepdims=True)
    var = x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * gain + bias
""",
        [
            ("x.var(axis=-1, keepdims=True)", "x.var(axis=-1, keepdims=True, ddof=1)", "D - 1"),
            ("(x - mean)", "x", "the mean is not subtracted"),
            ("np.sqrt(var + eps)", "(var + eps)", "root is missing"),
            ("np.sqrt(var + eps)", "(np.sqrt(var) + eps)", "under the root"),
            (" * gain + bias", "", "gain and bias are not used"),
            (" + bias", "", "bias is not used"),
            ("(axis=-1, keepdims=True)", "()", "those of all values"),
            ("axis=-1", "axis=0", "over positions"),
        ],
    ),
    "multi_head": (
        """
def multi_head(x, memory, mask, w, b):
    q = jnp.einsum("btd,dnh->bnth", x, w["q"]) + b["q"][:, None]
    k = jnp.einsum("bsd,dnh->bnsh", memory, w["k"]) + b["k"][:, None]
    v = jnp.einsum("bsd,dnh->bnsh", memory, w["v"]) + b["v"][:, None]
    s = jnp.einsum("bnth,bnsh->bnts", q, k) / q.shape[-1] ** 0.5
    a = jax.nn.softmax(jnp.where(mask, s, -1e30))
    y = jnp.einsum("bnts,bnsh->btnh", a, v)
    return jnp.einsum("btnh,nhd->btd", y, w["o"]) + b["o"]
""",
        [
            ("memory, w", "x, w", "keys and values come from x"),
            (
                '    q = jnp.einsum("btd,dnh->bnth", x',
                '    q = jnp.einsum("btd,dnh->bnth", memory',
                "queries come from memory",
            ),
            (' + b["o"]', "", "bias of the output"),
            (" / q.shape[-1] ** 0.5", "", "√H is missing"),
            ("q.shape[-1] ** 0.5", "x.shape[-1] ** 0.5", "√D"),
            ("jnp.where(mask, s, -1e30)", "s", "mask is not used"),
            ("jnp.where(mask, s, -1e30)", "jnp.where(mask, -1e30, s)", "reversed"),
            (
                'return jnp.einsum("btnh,nhd->btd", y, w["o"]) + b["o"]',
                "return y.reshape(x.shape)",
                "output map",
            ),
        ],
    ),
    "block": (
        """
def block(x, sublayers, norms, placement):
    for f, norm in zip(sublayers, norms):
        if placement == "pre":
            x = x + f(norm(x))
        else:
            x = norm(x + f(x))
    return x
""",
        [
            ('== "pre"', '== "post"', "swapped"),
            ("x + f", "f", "input is not added"),
            ("x + f(norm(x))", "norm(x) + f(norm(x))", "normalized input is added"),
            ("norm(x + f(x))", "x + norm(f(x))", "output alone"),
            ('if placement == "pre":', "if False:", "always post"),
            ("zip(sublayers, norms)", "list(zip(sublayers, norms))[:1]", "only the first"),
            ("zip(sublayers, norms)", "list(zip(sublayers, norms))[::-1]", "other order"),
            ("zip(sublayers, norms)", "zip(sublayers, norms[:1] * 2)", "first norm"),
        ],
    ),
    "shift_right": (
        """
def shift_right(tokens, bos):
    shifted = np.roll(tokens, 1, axis=1)
    shifted[:, 0] = bos
    return shifted
""",
        [
            ("    shifted[:, 0] = bos\n", "", "wraps around"),
            ("np.roll(tokens, 1, axis=1)", "tokens.copy()", "nothing is shifted"),
            (
                "1, axis=1)\n    shifted[:, 0] = bos",
                "-1, axis=1)\n    shifted[:, -1] = bos",
                "left",
            ),
            ("axis=1)\n    shifted[:, 0]", "axis=0)\n    shifted[0]", "rows are shifted"),
            ("= bos", "= 0", "0 comes first"),
            ("return shifted", "return np.concatenate([shifted[:, :1], tokens], 1)", "longer"),
            ("return shifted", "return tokens[:, :-1]", "bos is missing"),
            ("shifted[:, 0] = bos", "shifted[:, 0] = tokens[:, 0]", "repeated"),
        ],
    ),
    "smooth_loss": (
        """
def smooth_loss(logits, targets, smoothing):
    log_p = jax.nn.log_softmax(logits)
    q = jax.nn.one_hot(targets, logits.shape[-1])
    q = (1 - smoothing) * q + smoothing / logits.shape[-1]
    return -(q * log_p).sum(-1)
""",
        [
            (
                "smoothing / logits.shape[-1]",
                "(1 - q) * smoothing / (logits.shape[-1] - 1)",
                "nothing of the smoothing",
            ),
            ("q = (1 - smoothing) * q + smoothing / logits.shape[-1]\n    ", "", "not used"),
            ("return -", "return ", "sign"),
            (".sum(-1)", ".sum(-1).mean()", "this is the mean"),
            ("(1 - smoothing) * q", "q", "keeps all of its weight"),
            ("smoothing / logits.shape[-1]", "smoothing", "not divided by V"),
            ("jax.nn.log_softmax(logits)", "logits", "softmax is missing"),
            (
                "jax.nn.log_softmax(logits)",
                "jnp.log(jnp.exp(logits) / jnp.exp(logits).sum(-1, keepdims=True))",
                "overflow",
            ),
        ],
    ),
    "token_loss": (
        """
def token_loss(losses, real):
    return np.where(real, losses, 0).sum(), real.sum()
""",
        [
            ("np.where(real, losses, 0).sum()", "(losses * real).sum()", "NaN"),
            ("real.sum()", "real.size", "padding is counted"),
            ("np.where(real, losses, 0).sum()", "losses.sum()", "padding is added"),
            (
                "return np.where(real, losses, 0).sum(), real.sum()",
                "return np.where(real, losses, 0).sum() / real.sum()",
                "the mean",
            ),
            ("real.sum()", "len(real)", "texts are counted"),
            (
                "return np.where(real, losses, 0).sum(), real.sum()",
                "return real.sum(), np.where(real, losses, 0).sum()",
                "swapped",
            ),
            (
                "np.where(real, losses, 0).sum()",
                "(np.where(real, losses, 0).sum(1) / real.sum(1)).sum()",
                "averaged first",
            ),
            (".sum(), real.sum()", ".sum(1), real.sum(1)", "own sum"),
        ],
    ),
    "greedy": (
        """
def greedy(next_logits, bos, eos, limit):
    tokens = [bos]
    for _ in range(limit):
        tokens.append(int(np.argmax(next_logits([tokens])[0])))
        if tokens[-1] == eos:
            break
    return tokens[1:]
""",
        [
            ("return tokens[1:]", "return tokens", "contains bos"),
            ("        if tokens[-1] == eos:\n            break\n", "", "does not stop"),
            ("range(limit)", "range(limit + 1)", "one token too many"),
            ("range(limit)", "range(limit - 1)", "counts bos"),
            ("[tokens]", "[tokens[-1:]]", "last token alone"),
            ("argmax", "argmin", "least probable"),
            (
                "return tokens[1:]",
                "return [t for t in tokens[1:] if t != eos]",
                "end token is missing",
            ),
            ("tokens = [bos]", "tokens = [0]", "begins with 0"),
        ],
    ),
    "beam": (
        """
def beam(next_logits, bos, eos, limit, beams, alpha):
    def penalty(n):
        return ((5 + n) / 6) ** alpha
    live, best, text = [(0.0, [])], -np.inf, None
    for n in range(1, limit + 1):
        logits = np.asarray(next_logits([[bos] + t for _, t in live]), float)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        ways = [(s + log_p[i, v], t + [v]) for i, (s, t) in enumerate(live)
                for v in ([eos] if n == limit else range(log_p.shape[1]))]
        ways.sort(key=lambda way: -way[0])
        for s, t in ways[:beams]:
            if t[-1] == eos and s / penalty(n) > best:
                best, text = s / penalty(n), t
        live = [way for way in ways if way[1][-1] != eos][:beams]
    return text, best
""",
        [
            ("((5 + n) / 6) ** alpha", "1", "penalty is not used"),
            ("((5 + n) / 6) ** alpha", "n ** alpha", "length^α"),
            ("return text, best", "return [bos] + text, best", "contains bos"),
            ("return text, best", "return text[:-1], best", "end token is missing"),
            ("return text, best", "return text", "tokens alone"),
            ("live, best, text =", "beams = 1\n    live, best, text =", "greedy"),
            (
                "[[bos] + t for _, t in live]",
                "[([bos] + t)[-1:] for _, t in live]",
                "last token alone",
            ),
            ("return text, best", "return text, np.exp(best)", "probability"),
        ],
    ),
    "additive_score": (
        """
def additive_score(q, k, w_q, w_k, v):
    return jnp.tanh((q @ w_q)[:, None] + (k @ w_k)[None]) @ v
""",
        [
            ("jnp.tanh", "", "tanh is missing"),
            (
                "jnp.tanh((q @ w_q)[:, None] + (k @ w_k)[None])",
                "(jnp.tanh(q @ w_q)[:, None] + jnp.tanh(k @ w_k)[None])",
                "before the sum",
            ),
            ("[:, None] +", "[:, None] *", "multiplied"),
            ("jnp.tanh", "jax.nn.sigmoid", "sigmoid"),
            ("jnp.tanh", "jax.nn.relu", "ReLU"),
            (" @ v", ".sum(-1)", "v is not used"),
            (
                "(q @ w_q)[:, None] + (k @ w_k)[None]",
                "(q @ w_q)[None] + (k @ w_k)[:, None]",
                "rows are queries",
            ),
            (
                "return jnp.tanh((q @ w_q)[:, None] + (k @ w_k)[None]) @ v",
                "return jax.nn.softmax(jnp.tanh((q @ w_q)[:, None] + (k @ w_k)[None]) @ v)",
                "no softmax",
            ),
        ],
    ),
    "adam_step": (
        """
def adam_step(w, gradient, m, v, step, d_model, warmup):
    rate = d_model ** -0.5 * min(step ** -0.5, step * warmup ** -1.5)
    beta = 0.98
    m = 0.9 * m + 0.1 * gradient
    v = beta * v + (1 - beta) * gradient ** 2
    m_hat, v_hat = m / (1 - 0.9 ** step), v / (1 - beta ** step)
    return w - rate * m_hat / (np.sqrt(v_hat) + 1e-9), m, v
""",
        [
            ("m / (1 - 0.9 ** step), v / (1 - beta ** step)", "m, v", "corrections"),
            ("np.sqrt(v_hat)", "v_hat", "root of v"),
            ("w - rate", "w + rate", "uphill"),
            ("0.98", "0.999", "the paper has 0.98"),
            ("min(step ** -0.5, step * warmup ** -1.5)", "step ** -0.5", "warmup is missing"),
            ("min(", "max(", "keeps growing"),
            ("d_model ** -0.5 * ", "", "no D^-½"),
            ("warmup ** -1.5", "warmup ** -1.0", "power 1.5"),
        ],
    ),
    "cache_step": (
        """
def cache_step(q, k, v, cache):
    keys, values = (np.concatenate([old, new[:, None]], axis=1)
                    for old, new in zip(cache, (k, v)))
    s = np.einsum("nh,nth->nt", q, keys) / np.sqrt(q.shape[-1])
    w = np.exp(s - s.max(-1, keepdims=True))
    w = w / w.sum(-1, keepdims=True)
    return np.einsum("nt,nth->nh", w, values), (keys, values)
""",
        [
            ("(keys, values)", "cache", "nothing is kept"),
            ("np.concatenate([old, new[:, None]], axis=1)", "new[:, None]", "new token alone"),
            (" / np.sqrt(q.shape[-1])", "", "√H is missing"),
            ("w, values)", "w, keys)", "keys are mixed"),
            ("[old, new[:, None]]", "[new[:, None], old]", "come first"),
            (
                'return np.einsum("nt,nth->nh", w, values), (keys, values)',
                "return keys, values",
                "returned alone",
            ),
            ("w = w / w.sum(-1, keepdims=True)", "w = np.ones_like(s) / s.shape[1]", "averaged"),
            ("(k, v)", "(q, v)", "query is kept"),
        ],
    ),
    "top_p": (
        """
def top_p(logits, p):
    probs = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    order = np.argsort(-probs)
    before = np.cumsum(probs[order]) - probs[order]
    keep = np.zeros(len(logits), bool)
    keep[order] = before < p
    return np.where(keep, logits, -np.inf)
""",
        [
            (
                "before = np.cumsum(probs[order]) - probs[order]",
                "before = np.cumsum(probs[order])",
                "reaches p is forbidden",
            ),
            ("np.argsort(-probs)", "np.arange(len(probs))", "as they stand"),
            ("np.argsort(-probs)", "np.argsort(probs)", "least probable tokens stay"),
            ("-np.inf", "0", "get 0"),
            (
                "return np.where(keep, logits, -np.inf)",
                "return np.where(keep, probs, 0)",
                "probabilities",
            ),
            ("keep[order] = before < p", "keep = probs >= p", "at least p stay"),
            (
                "np.where(keep, logits, -np.inf)",
                "np.where(keep[order], logits[order], -np.inf)",
                "sorted order",
            ),
            ("-np.inf", "-1e9", "large negative"),
        ],
    ),
    "bpe_merge": (
        """
def bpe_merge(words):
    counts = {}
    for word, count in words.items():
        for pair in zip(word, word[1:]):
            counts[pair] = counts.get(pair, 0) + count
    best = min(counts, key=lambda pair: (-counts[pair], pair))
    merged = {}
    for word, count in words.items():
        out, n = [], 0
        while n < len(word):
            if word[n:n + 2] == best:
                out.append(word[n] + word[n + 1])
                n += 2
            else:
                out.append(word[n])
                n += 1
        merged[tuple(out)] = count
    return best, merged
""",
        [
            ("+ count\n", "+ 1\n", "counted once"),
            (
                "min(counts, key=lambda pair: (-counts[pair], pair))",
                "max(counts, key=counts.get)",
                "the first is merged",
            ),
            (
                "min(counts, key=lambda pair: (-counts[pair], pair))",
                "max(counts, key=lambda pair: (counts[pair], pair))",
                "the largest is merged",
            ),
            ("-counts[pair]", "counts[pair]", "least frequent"),
            ("return best, merged", "return best, dict(words)", "not merged"),
            ("word[n] + word[n + 1]", "word[n] + ' ' + word[n + 1]", "space"),
            ("return best, merged", "return ''.join(best), merged", "one text"),
            ("return best, merged", "return merged", "words alone"),
        ],
    ),
    "wordpiece": (
        """
def wordpiece(word, vocabulary):
    pieces = []
    while word:
        for n in range(len(word), 0, -1):
            piece = ("##" if pieces else "") + word[:n]
            if piece in vocabulary:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        word = word[n:]
    return pieces
""",
        [
            ("range(len(word), 0, -1)", "range(1, len(word) + 1)", "shortest"),
            ("pieces.append(piece)", "pieces.append(piece.replace('##', ''))", "need ##"),
            ('return ["[UNK]"]', 'return pieces + ["[UNK]"]', "keeps the pieces"),
            ('return ["[UNK]"]', "return pieces", "is dropped"),
            ('return ["[UNK]"]', 'return "[UNK]"', "a text"),
            ('return ["[UNK]"]', "return []", "no pieces"),
            ("return pieces", "return ' '.join(pieces)", "one text"),
            ("return pieces", "return pieces[::-1]", "reverse"),
        ],
    ),
    "mask_words": (
        """
def mask_words(tokens, special, chance, kind, others, mask_id):
    predict = (chance < 0.15) & ~special
    new = np.where(kind < 0.8, mask_id, np.where(kind < 0.9, others, tokens))
    return np.where(predict, new, tokens), predict
""",
        [
            ("0.15", "0.2", "20 percent"),
            (" & ~special", "", "special tokens are corrupted"),
            (
                "np.where(kind < 0.8, mask_id, np.where(kind < 0.9, others, tokens))",
                "mask_id",
                "become the mask",
            ),
            ("np.where(kind < 0.9, others, tokens)", "others", "no chosen token stays"),
            (
                "np.where(kind < 0.9, others, tokens)",
                "np.where(kind < 0.1, others, tokens)",
                "random one",
            ),
            ("tokens), predict", "tokens), predict & (kind < 0.8)", "only masks"),
            (
                "tokens), predict",
                "tokens), np.where(predict, tokens, -100)",
                "targets are returned",
            ),
            ("tokens), predict", "tokens), ~predict", "reversed"),
        ],
    ),
    "next_sentences": (
        """
def next_sentences(documents, coins, picks):
    pairs = []
    for d, document in enumerate(documents):
        others = [s for e, other in enumerate(documents) if e != d for s in other]
        for a, b in zip(document, document[1:]):
            n = len(pairs)
            follows = coins[n] < 0.5
            other = b if follows else others[picks[n] % len(others)]
            pairs.append((a, other, follows))
    return pairs
""",
        [
            ("other, follows))", "other, not follows))", "labels are reversed"),
            ("coins[n] < 0.5", "coins[n] > 0.5", "coins are reversed"),
            (" if e != d", "", "same document"),
            ("coins[n] < 0.5", "coins[n] <= 0.5", "exactly 0.5"),
            ("coins[n] < 0.5", "True", "follow each other"),
            ("coins[n] < 0.5", "False", "no pair follows"),
            ("other, follows))", "other, True))", "labels are True"),
            (
                "(a, other, follows)",
                "(a if follows else other, b, follows)",
                "first sentence is replaced",
            ),
        ],
    ),
    "lora_merge": (
        """
def lora_merge(w, a, b, alpha):
    return w + alpha / a.shape[1] * a @ b
""",
        [
            ("alpha / a.shape[1]", "alpha", "division by r"),
            ("alpha / a.shape[1] * ", "", "alpha is not used"),
            ("alpha / a.shape[1]", "a.shape[1] / alpha", "r / alpha"),
            ("a.shape[1]", "a.shape[1] ** 0.5", "√r"),
            ("a.shape[1]", "a.shape[0]", "by D"),
            ("w + ", "w - ", "subtracted"),
            ("w + ", "", "itself is missing"),
            ("w + alpha / a.shape[1] * a @ b", "(w + a @ b) * alpha / a.shape[1]", "scaled too"),
        ],
    ),
    "dpo_loss": (
        """
def dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta):
    margin = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -jax.nn.log_sigmoid(beta * margin)
""",
        [
            (
                "(chosen - ref_chosen) - (rejected - ref_rejected)",
                "(rejected - ref_rejected) - (chosen - ref_chosen)",
                "swapped",
            ),
            (
                "(chosen - ref_chosen) - (rejected - ref_rejected)",
                "chosen - rejected",
                "reference is not used",
            ),
            ("beta * margin", "margin", "beta is not used"),
            (
                "-jax.nn.log_sigmoid(beta * margin)",
                "-beta * jax.nn.log_sigmoid(margin)",
                "multiplies the loss",
            ),
            ("(beta * margin)", "(beta * margin).mean()", "mean"),
            ("return -", "return ", "sign"),
            (
                "-jax.nn.log_sigmoid(beta * margin)",
                "-jnp.log(1 / (1 + jnp.exp(-beta * margin)))",
                "overflow",
            ),
            ("ref_chosen) - (", "ref_chosen) + (", "added"),
        ],
    ),
    "brevity_penalty": (
        """
def brevity_penalty(candidates, references):
    c = r = 0
    for text, texts in zip(candidates, references):
        c += len(text)
        r += min((abs(len(one) - len(text)), len(one)) for one in texts)[1]
    if c == 0:
        return 0.0
    return 1.0 if c > r else float(np.exp(1 - r / c))
""",
        [
            ("1 - r / c", "1 - c / r", "swapped"),
            ("float(np.exp(1 - r / c))", "c / r", "exponential"),
            ("1.0 if c > r else ", "", "punished too"),
            (
                "min((abs(len(one) - len(text)), len(one)) for one in texts)[1]",
                "max(map(len, texts))",
                "longest",
            ),
            (
                "min((abs(len(one) - len(text)), len(one)) for one in texts)[1]",
                "min(map(len, texts))",
                "shortest",
            ),
            (
                "min((abs(len(one) - len(text)), len(one)) for one in texts)[1]",
                "len(texts[0])",
                "first reference",
            ),
            (
                "min((abs(len(one) - len(text)), len(one)) for one in texts)[1]",
                "sum(map(len, texts)) / len(texts)",
                "mean of the references",
            ),
            ("return 0.0", "return 1.0", "no words"),
        ],
    ),
    "rnn_step": (
        """
def rnn_step(h, x, memory, mask, w):
    scores = jnp.tanh(h @ w["query"] + memory @ w["key"]) @ w["score"]
    a = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    c = a @ memory
    return jnp.tanh(x @ w["x"] + h @ w["h"] + c @ w["c"] + w["b"]), a
""",
        [
            ("jnp.where(mask, scores, -jnp.inf)", "scores", "padding is not hidden"),
            (' + c @ w["c"]', "", "context is not used"),
            (' + h @ w["h"]', "", "state before is not used"),
            ('h @ w["query"]', 'x @ w["query"]', "input asks"),
            ("return jnp.tanh", "return jax.nn.sigmoid", "sigmoid"),
            (' + w["b"]', "", "bias"),
            ("return jnp.tanh", "return ", "tanh of the new state"),
            ("), a", "), scores", "scores are returned"),
        ],
    ),
}
