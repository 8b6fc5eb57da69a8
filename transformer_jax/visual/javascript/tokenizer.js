// A tokenizer.json in plain JavaScript: the parts that transformer_jax/visual/model_page.py lets through.
// Tested against the library `tokenizers` by tests/visual/test_model_page.py.
"use strict";

const SPACE = /\p{White_Space}/u;

// Regular expressions of the file, which are not JavaScript's: blanks are Unicode's White_Space.
const expression = (pattern) => {
  if (pattern.String !== undefined) return new RegExp(pattern.String.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "gu");
  return new RegExp(pattern.Regex.replaceAll("\\s", "\\p{White_Space}").replaceAll("\\S", "\\P{White_Space}"), "gu");
};

// The character of each byte in a byte-level vocabulary (Radford et al. 2019).
const BYTES = (() => {
  const prints = (b) => (b > 32 && b < 127) || (b > 160 && b < 173) || b > 173;
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(prints(b) ? b : next++));
})();
const BYTE_OF = new Map(BYTES.map((c, b) => [c, b]));
const utf8 = (text) => new TextEncoder().encode(text);
const fromUtf8 = (bytes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));

// --- normalizers ---------------------------------------------------------------------------------

const lower = (text) => Array.from(text, (c) => c.toLowerCase()).join("");
const withoutAccents = (text) => text.replace(/\p{Mn}/gu, "");
const NORMALIZERS = {
  NFC: (text) => text.normalize("NFC"),
  NFD: (text) => text.normalize("NFD"),
  NFKC: (text) => text.normalize("NFKC"),
  NFKD: (text) => text.normalize("NFKD"),
  Lowercase: lower,
  StripAccents: (text) => text.replace(/\p{M}/gu, ""),
  Replace: (text, { pattern, content }) => text.replace(expression(pattern), () => content),
  Prepend: (text, { prepend }) => (text ? prepend + text : text),
  Strip: (text, { strip_left: left, strip_right: right }) => {
    if (left) text = text.replace(/^\p{White_Space}+/u, "");
    return right ? text.replace(/\p{White_Space}+$/u, "") : text;
  },
  Sequence: (text, { normalizers }) => normalizers.reduce(normalized, text),
  BertNormalizer: (text, { clean_text, handle_chinese_chars, strip_accents, lowercase }) => {
    if (clean_text) text = Array.from(text, (c) => (/[\t\n\r]/.test(c) || SPACE.test(c) ? " " : c === "\ufffd" || /\p{C}/u.test(c) ? "" : c)).join("");
    if (handle_chinese_chars) text = text.replace(/[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu, " $& ");
    if (strip_accents ?? lowercase) text = withoutAccents(text.normalize("NFD"));
    return lowercase ? lower(text) : text;
  },
};
// SentencePiece's table of replacements: a double-array trie from bytes to places of texts.
const TABLES = new Map();
function replacements(base64) {
  if (!TABLES.has(base64)) {
    const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)), size = new DataView(bytes.buffer).getUint32(0, true);
    TABLES.set(base64, [new Uint32Array(bytes.slice(4, 4 + size).buffer), bytes.subarray(4 + size)]);
  }
  const [trie, texts] = TABLES.get(base64), offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
  return (part) => {
    let at = offset(trie[0]);
    for (const byte of utf8(part)) {
      at ^= byte;
      const unit = trie[at];
      if (unit === undefined || (unit & 0x800000ff) >>> 0 !== byte) return null;
      at ^= offset(unit);
      if ((unit >>> 8) & 1) {
        const start = trie[at] & 0x7fffffff;
        return fromUtf8(texts.subarray(start, texts.indexOf(0, start)));
      }
    }
    return null;
  };
}
NORMALIZERS.Precompiled = (text, { precompiled_charsmap: table }) => {
  const replaced = replacements(table);
  return Array.from(new Intl.Segmenter(undefined, { granularity: "grapheme" }).segment(text), ({ segment }) =>
    (utf8(segment).length < 6 ? replaced(segment) : null) ?? Array.from(segment, (c) => replaced(c) ?? c).join("")).join("");
};
const normalized = (text, part) => (part ? NORMALIZERS[part.type](text, part) : text);

// --- pre-tokenizers: pieces to pieces ------------------------------------------------------------

// Cuts a text at matches, which stay alone, are removed, or join a neighbour.
function split(text, pattern, behavior, invert = false) {
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    if (!match[0]) continue;
    if (match.index > at) parts.push([text.slice(at, match.index), invert]);
    parts.push([match[0], !invert]);
    at = match.index + match[0].length;
  }
  if (at < text.length) parts.push([text.slice(at), invert]);
  const out = [];
  parts.forEach(([part, matched], i) => {
    if (behavior === "Removed" && matched) return;
    const before = i > 0 && parts[i - 1][1]; // whether the part before is a match
    const joins = (behavior === "Contiguous" && matched && before) || (behavior === "MergedWithNext" && !matched && before)
      || (behavior === "MergedWithPrevious" && matched && i > 0 && !before);
    if (joins) out[out.length - 1] += part; else out.push(part);
  });
  return out;
}

const GPT2 = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const PUNCTUATION = /[!-/:-@[-`{-~]|\p{P}/gu;
const PRE_TOKENIZERS = {
  ByteLevel: (pieces, { add_prefix_space: prefix, use_regex = true }) => pieces.flatMap((piece) => {
    if (prefix && piece && !piece.startsWith(" ")) piece = " " + piece;
    return (use_regex ? split(piece, GPT2, "Isolated") : [piece]).map((part) => Array.from(utf8(part), (b) => BYTES[b]).join(""));
  }),
  Split: (pieces, { pattern, behavior, invert }) => pieces.flatMap((piece) => split(piece, expression(pattern), behavior, invert)),
  Metaspace: (pieces, { replacement: mark, prepend_scheme: scheme = "always", split: apart = true }) => pieces.flatMap((piece, i) => {
    piece = piece.replaceAll(" ", mark);
    if (!piece.startsWith(mark) && (scheme === "always" || (scheme === "first" && i === 0))) piece = mark + piece;
    return apart ? split(piece, expression({ String: mark }), "MergedWithNext") : [piece];
  }),
  Whitespace: (pieces) => pieces.flatMap((piece) => piece.match(/[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}\p{White_Space}]+/gu) || []),
  WhitespaceSplit: (pieces) => pieces.flatMap((piece) => split(piece, /\p{White_Space}/gu, "Removed")),
  BertPreTokenizer: (pieces) => pieces.flatMap((piece) => split(piece, /\p{White_Space}/gu, "Removed")).flatMap((piece) => split(piece, PUNCTUATION, "Isolated")),
  Punctuation: (pieces, { behavior = "Isolated" }) => pieces.flatMap((piece) => split(piece, PUNCTUATION, behavior)),
  Digits: (pieces, { individual_digits: each }) => pieces.flatMap((piece) => split(piece, /\p{N}/gu, each ? "Isolated" : "Contiguous")),
  Sequence: (pieces, { pretokenizers }) => pretokenizers.reduce(pieced, pieces),
};
const pieced = (pieces, part) => (part ? PRE_TOKENIZERS[part.type](pieces, part) : pieces);

// --- models: a piece to tokens -------------------------------------------------------------------

const byteTokens = (text, vocab) => {
  const tokens = Array.from(utf8(text), (b) => `<0x${b.toString(16).toUpperCase().padStart(2, "0")}>`);
  return tokens.every((token) => vocab.has(token)) ? tokens : null;
};

class BPE {
  constructor(file, vocab) {
    Object.assign(this, { file, vocab, cache: new Map() });
    this.ranks = new Map(file.merges.map((merge, i) => [typeof merge === "string" ? merge : merge.join(" "), i]));
  }
  tokens(piece) {
    if (!this.cache.has(piece)) this.cache.set(piece, this.merged(piece));
    return this.cache.get(piece);
  }
  merged(piece) {
    const { unk_token: unk, byte_fallback: bytes, fuse_unk: fuse, ignore_merges: whole, continuing_subword_prefix: inside, end_of_word_suffix: suffix } = this.file;
    if (whole && this.vocab.has(piece)) return [piece];
    const letters = Array.from(piece), parts = [];
    letters.forEach((letter, i) => {
      let token = i && inside ? inside + letter : letter;
      if (suffix && i === letters.length - 1) token += suffix;
      if (this.vocab.has(token)) return parts.push(token);
      const fallback = bytes ? byteTokens(token, this.vocab) : null;
      if (fallback) return parts.push(...fallback);
      if (unk && !(fuse && parts[parts.length - 1] === unk)) parts.push(unk);
    });
    for (;;) {
      let least = Infinity, at = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`);
        if (rank < least) { least = rank; at = i; }
      }
      if (at < 0) return parts;
      const right = inside && parts[at + 1].startsWith(inside) ? parts[at + 1].slice(inside.length) : parts[at + 1];
      parts.splice(at, 2, parts[at] + right);
    }
  }
}

class WordPiece {
  constructor(file, vocab) { Object.assign(this, { file, vocab }); }
  tokens(piece) {
    const { unk_token: unk, max_input_chars_per_word: most = 100, continuing_subword_prefix: prefix = "##" } = this.file;
    const letters = Array.from(piece), out = [];
    if (letters.length > most) return [unk];
    for (let start = 0; start < letters.length;) {
      let end = letters.length, token;
      for (; end > start; end--) {
        token = (start ? prefix : "") + letters.slice(start, end).join("");
        if (this.vocab.has(token)) break;
      }
      if (end === start) return [unk];
      out.push(token);
      start = end;
    }
    return out;
  }
}

class WordLevel {
  constructor(file, vocab) { Object.assign(this, { file, vocab }); }
  tokens(piece) { return this.vocab.has(piece) ? [piece] : [this.file.unk_token]; }
}

// The most probable cut into pieces (Kudo 2018), by Viterbi.
class Unigram {
  constructor(file, vocab) {
    Object.assign(this, { file, vocab });
    this.scores = new Map();
    for (const [token, score] of file.vocab) this.scores.set(token, score);
    this.longest = file.vocab.reduce((most, [token]) => Math.max(most, token.length), 1);
    this.unknown = file.vocab.reduce((least, [, score]) => Math.min(least, score), Infinity) - 10;
  }
  tokens(piece) {
    const letters = Array.from(piece), { unk_id: unk, byte_fallback: bytes } = this.file, n = letters.length;
    const best = Array.from({ length: n + 1 }, () => ({ score: 0, start: -1 }));
    for (let start = 0; start < n; start++) {
      let alone = false, text = "";
      const take = (end, score, token) => {
        if (best[end].start < 0 || best[start].score + score > best[end].score) best[end] = { score: best[start].score + score, start, token };
      };
      for (let end = start + 1; end <= n && text.length <= this.longest; end++) {
        text += letters[end - 1];
        if (!this.scores.has(text)) continue;
        take(end, this.scores.get(text), text);
        alone ||= end === start + 1;
      }
      if (!alone) take(start + 1, this.unknown, null);
    }
    const out = [];
    for (let end = n; end > 0; end = best[end].start) {
      const { start, token } = best[end];
      if (token === null && out.length && out[out.length - 1].token === null) out[out.length - 1].text = letters[start] + out[out.length - 1].text;
      else out.push({ token, text: letters.slice(start, end).join("") });
    }
    return out.reverse().flatMap(({ token, text }) => token ?? ((bytes && byteTokens(text, this.vocab)) || this.file.vocab[unk][0]));
  }
}

// --- decoders: tokens to texts -------------------------------------------------------------------

const CLEANED = [[" .", "."], [" ?", "?"], [" !", "!"], [" ,", ","], [" ' ", "'"], [" n't", "n't"], [" 'm", "'m"], [" do not", " don't"], [" 's", "'s"], [" 've", "'ve"], [" 're", "'re"]];
const cleaned = (text) => CLEANED.reduce((all, [from, to]) => all.replaceAll(from, to), text);
const DECODERS = {
  ByteLevel: (tokens) => [fromUtf8(tokens.flatMap((token) => Array.from(token).every((c) => BYTE_OF.has(c)) ? Array.from(token, (c) => BYTE_OF.get(c)) : Array.from(utf8(token))))],
  WordPiece: (tokens, { prefix, cleanup }) => tokens.map((token, i) => {
    if (i) token = token.startsWith(prefix) ? token.slice(prefix.length) : " " + token;
    return cleanup ? cleaned(token) : token;
  }),
  Metaspace: (tokens, { replacement: mark, prepend_scheme: scheme = "always" }) => tokens.map((token, i) =>
    (i === 0 && scheme !== "never" && token.startsWith(mark) ? token.slice(mark.length) : token).replaceAll(mark, " ")),
  Replace: (tokens, { pattern, content }) => tokens.map((token) => token.replace(expression(pattern), () => content)),
  Fuse: (tokens) => [tokens.join("")],
  Strip: (tokens, { content, start, stop }) => tokens.map((token) => {
    for (let i = 0; i < start && token.startsWith(content); i++) token = token.slice(content.length);
    for (let i = 0; i < stop && token.endsWith(content); i++) token = token.slice(0, -content.length);
    return token;
  }),
  ByteFallback: (tokens) => {
    const out = [];
    let run = [];
    const close = () => { if (run.length) out.push(fromUtf8(run)); run = []; };
    for (const token of tokens) {
      const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(token);
      if (byte) run.push(parseInt(byte[1], 16)); else { close(); out.push(token); }
    }
    close();
    return out;
  },
  BPEDecoder: (tokens, { suffix }) => tokens.map((token, i) => token.replaceAll(suffix, i + 1 < tokens.length ? " " : "")),
  Sequence: (tokens, { decoders }) => decoders.reduce(decoded, tokens),
};
const decoded = (tokens, part) => DECODERS[part.type](tokens, part);

// --- text to ids and back ------------------------------------------------------------------------

class Tokenizer {
  // `packed` is {file, ids, text}: the tokenizer.json, special ids, and how texts are prepared.
  constructor(packed) {
    const { file } = packed, entries = file.model.type === "Unigram" ? file.model.vocab.map(([token], id) => [token, id]) : Object.entries(file.model.vocab);
    Object.assign(this, packed);
    this.vocab = new Map(entries);
    const inside = new Map(this.vocab);
    for (const { id, content } of file.added_tokens || []) this.vocab.set(content, id);
    this.names = [];
    for (const [token, id] of this.vocab) this.names[id] = token;
    this.model = new { BPE, WordPiece, WordLevel, Unigram }[file.model.type](file.model, inside);
    this.special = new Set(this.ids.special);
    this.never = new Set(this.ids.never_text);
  }

  // Ids of a text without special tokens; a text that spells one out has unknown tokens.
  encode(text) {
    const read = normalized(text, this.file.normalizer);
    const pieces = read ? pieced([read], this.file.pre_tokenizer).filter((piece) => piece) : [];
    const ids = pieces.flatMap((piece) => this.model.tokens(piece).map((token) => this.vocab.get(token)));
    return ids.flatMap((id) => (this.never.has(id) ? (this.ids.unk === null ? [] : [this.ids.unk]) : [id]));
  }

  decode(ids) {
    const tokens = ids.filter((id) => !this.special.has(id)).map((id) => this.names[id]).filter((token) => token !== undefined);
    return this.file.decoder ? decoded(tokens, this.file.decoder).join("") : tokens.join(" ");
  }

  // A readable name of a token: its text, unless it is part of a character.
  name(id) {
    const token = this.names[id] ?? `#${id}`;
    if (this.special.has(id)) return token;
    const text = this.file.decoder ? decoded([token], this.file.decoder).join("") : token;
    const shown = text && !text.includes("\ufffd") && !token.startsWith("##") ? text : token;
    return shown.replaceAll(" ", "▁").replaceAll("\n", "⏎");
  }

  // The text as in training: `line` without blanks at its ends, `source` with a prefix, `text`.
  prepare(text, how) {
    const { blanks, normalization, lowercase, by_line, inside, source_prefix } = this.text, blank = new Set(blanks);
    if (how !== "text") {
      const letters = Array.from(text);
      while (letters.length && blank.has(letters[0])) letters.shift();
      while (letters.length && blank.has(letters[letters.length - 1])) letters.pop();
      text = letters.join("");
    }
    if (by_line) text = text.replace(/[\r\n]+$/, "");
    if (lowercase) text = text.toLowerCase();
    if (normalization === "nfc") text = text.normalize("NFC");
    if (how !== "source") return text;
    if (inside === "single") text = text.split(/[\p{White_Space}\x1c-\x1f]+/u).filter((word) => word).join(" ");
    if (inside === "one_line") text = text.replace(/\r?\n/g, " ");
    return text ? source_prefix + text : "";
  }

  // The ids that the model reads, with special tokens; [MASK] is a mask of an encoder.
  read(text) {
    const { before, after, mask, alone } = this.ids, how = this.text.how;
    if (mask !== null && this.text.masks) {
      const parts = text.replaceAll(this.names[mask], "[MASK]").split("[MASK]");
      if (parts.length > 1) {
        const ids = parts.flatMap((part, i) => {
          if (this.text.blank_is_part && i + 1 < parts.length) part = part.replace(/ +$/, "");
          return [...(i ? [mask] : []), ...this.encode(this.prepare(part, "text"))];
        });
        return [...before, ...ids, ...after];
      }
    }
    const ids = [...before, ...this.encode(this.prepare(text, how)), ...after];
    return ids.length || alone === null ? ids : [alone];
  }
}
