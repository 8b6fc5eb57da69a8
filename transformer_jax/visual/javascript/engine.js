// A Transformer in plain JavaScript over typed arrays. Parameters, activations and formulas have the
// names of the Python package (transformer_jax/models/activations.py); matrices are row by row, and
// sums are in double precision. Tested against JAX by tests/visual/test_model_page.py.
"use strict";

// --- parameters ----------------------------------------------------------------------------------

function halfToFloat() {
  const table = new Float32Array(65536);
  for (let h = 0; h < 65536; h++) {
    const sign = h & 0x8000 ? -1 : 1, e = (h >> 10) & 31, m = h & 1023;
    const value = e === 31 ? (m ? NaN : Infinity) : e ? (1 + m / 1024) * 2 ** (e - 15) : m * 2 ** -24;
    table[h] = sign * value;
  }
  return table;
}

function bytesOf(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// Arrays are [first byte, shape, type]: f32, f16, or i8, whose rows begin with a float32 scale each.
function unpack(arrays, base64) {
  const buffer = bytesOf(base64).buffer, half = halfToFloat(), params = {};
  for (const [name, [at, shape, type]] of Object.entries(arrays)) {
    const size = shape.reduce((a, b) => a * b, 1);
    let x;
    if (type === "f32") x = new Float32Array(buffer, at, size);
    else {
      x = new Float32Array(size);
      if (type === "f16") {
        const halves = new Uint16Array(buffer, at, size);
        for (let i = 0; i < size; i++) x[i] = half[halves[i]];
      } else {
        const rows = shape[0], width = size / rows, scales = new Float32Array(buffer, at, rows);
        const bytes = new Int8Array(buffer, at + 4 * rows, size);
        for (let r = 0; r < rows; r++) for (let i = r * width; i < (r + 1) * width; i++) x[i] = bytes[i] * scales[r];
      }
    }
    params[name] = { x, shape };
  }
  return params;
}

// --- formulas ------------------------------------------------------------------------------------

// y[T, F] = x[T, D] W[D, F] + b. Four rows of W at once take half the time of one by one.
function linear(x, T, W, b) {
  const [D, F] = W.shape, w = W.x, y = new Float32Array(T * F), row = new Float64Array(F);
  for (let t = 0; t < T; t++) {
    if (b) row.set(b.x); else row.fill(0);
    let d = 0;
    for (; d + 4 <= D; d += 4) {
      const at = t * D + d, p = x[at], q = x[at + 1], r = x[at + 2], s = x[at + 3];
      const i = d * F, j = i + F, k = j + F, l = k + F;
      for (let f = 0; f < F; f++) row[f] += p * w[i + f] + q * w[j + f] + r * w[k + f] + s * w[l + f];
    }
    for (; d < D; d++) for (let f = 0; f < F; f++) row[f] += x[t * D + d] * w[d * F + f];
    y.set(row, t * F);
  }
  return y;
}

// The product of vectors at two places; four sums do not wait for each other.
function dot(x, i, w, j, D) {
  let a = 0, b = 0, c = 0, e = 0, d = 0;
  for (; d + 4 <= D; d += 4) {
    a += x[i + d] * w[j + d];
    b += x[i + d + 1] * w[j + d + 1];
    c += x[i + d + 2] * w[j + d + 2];
    e += x[i + d + 3] * w[j + d + 3];
  }
  for (; d < D; d++) a += x[i + d] * w[j + d];
  return a + b + c + e;
}

// Error function, by the series near 0 and the continued fraction beyond: exact to double precision.
function erf(x) {
  const a = Math.abs(x);
  if (a > 6) return Math.sign(x);
  if (a < 2.5) {
    let term = a, sum = a;
    for (let n = 1; Math.abs(term) > 1e-17 * sum; n++) { term *= -a * a / n; sum += term / (2 * n + 1); }
    return Math.sign(x) * sum * 2 / Math.sqrt(Math.PI);
  }
  let f = 0;
  for (let k = 60; k > 0; k--) f = k / 2 / (a + f);
  return Math.sign(x) * (1 - Math.exp(-a * a) / (a + f) / Math.sqrt(Math.PI));
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const ACTIVATIONS = {
  relu: (x) => Math.max(x, 0),
  gelu: (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x))),
  silu: (x) => x * sigmoid(x),
  quick_gelu: (x) => x * sigmoid(1.702 * x),
  tanh: Math.tanh,
};

const softCap = (x, bound) => (bound === null ? x : bound * Math.tanh(x / bound));

// Softmax of visible scores; others have weight 0, and a row without any is zeros.
function softmax(scores, visible) {
  let top = -Infinity, sum = 0;
  const w = new Float32Array(scores.length);
  for (let s = 0; s < scores.length; s++) if (visible(s) && scores[s] > top) top = scores[s];
  if (top === -Infinity) return w;
  for (let s = 0; s < scores.length; s++) if (visible(s)) { w[s] = Math.exp(scores[s] - top); sum += w[s]; }
  for (let s = 0; s < scores.length; s++) w[s] /= sum;
  return w;
}

function logSoftmax(logits) {
  let top = -Infinity, sum = 0;
  for (const v of logits) if (v > top) top = v;
  for (const v of logits) sum += Math.exp(v - top);
  const log = top + Math.log(sum);
  return Float64Array.from(logits, (v) => v - log);
}

// [T, N·H] to [N, T, H]
function headsFirst(x, T, N) {
  const H = x.length / T / N, y = new Float32Array(x.length);
  for (let t = 0; t < T; t++) for (let n = 0; n < N; n++)
    y.set(x.subarray((t * N + n) * H, (t * N + n + 1) * H), (n * T + t) * H);
  return y;
}

function joined(a, b) {
  const y = new Float32Array(a.length + b.length);
  y.set(a); y.set(b, a.length);
  return y;
}

// --- the model -----------------------------------------------------------------------------------

// What an experiment changes: heads are names such as decoder/blocks/0/cross_attention/heads/2,
// hidden are positions of the source or of an encoder's text.
const unchanged = () => ({ heads: new Set(), hidden: new Set(), scale: true, mask: true, positions: true });

class Model {
  constructor(packed) {
    this.kind = packed.kind;
    this.config = packed.config;
    this.ids = packed.ids;
    this.labels = packed.labels || [];
    this.params = unpack(packed.arrays, packed.weights);
    this.change = unchanged();
    this.pause = () => {}; // called between parts of a computation, and awaited: it may end it by an error
  }

  norm(x, T, path) {
    const gain = this.params[`${path}/gain`], bias = this.params[`${path}/bias`], { kind, eps, gain_offset } = this.config.norm;
    const D = gain.x.length, y = new Float32Array(x.length);
    for (let at = 0; at < x.length; at += D) {
      let mean = 0, square = 0;
      if (kind === "layer") { for (let d = 0; d < D; d++) mean += x[at + d]; mean /= D; }
      for (let d = 0; d < D; d++) square += (x[at + d] - mean) ** 2;
      const scale = 1 / Math.sqrt(square / D + eps);
      for (let d = 0; d < D; d++)
        y[at + d] = (x[at + d] - mean) * scale * (gain.x[d] + gain_offset) + (bias ? bias.x[d] : 0);
    }
    return y;
  }

  map(x, T, path) { return linear(x, T, this.params[`${path}/kernel`], this.params[`${path}/bias`]); }

  // The input of the first block: token vectors with positions, segments and norm.
  embed(tokens, table, side, start, types) {
    const c = this.config, E = this.params[table].x, T = tokens.length, width = c.embedding_size;
    const places = this.params[`${side}/positions/table`], segments = this.params[`${side}/segments/table`];
    let x = new Float32Array(T * width);
    for (let t = 0; t < T; t++) for (let d = 0; d < width; d++) {
      let v = E[tokens[t] * width + d] * c.embedding_scale;
      if (this.change.positions) {
        if (places) v += places.x[(start + t + c.positions.offset) * width + d];
        else if (c.positions.kind.startsWith("sinusoidal")) v += this.sinusoid(start + t, d, width);
      }
      if (segments) v += segments.x[(types ? types[t] : 0) * width + d];
      x[t * width + d] = v;
    }
    if (this.params[`${side}/embedding_norm/gain`]) x = this.norm(x, T, `${side}/embedding_norm`);
    return this.params[`${side}/projection/kernel`] ? this.map(x, T, `${side}/projection`) : x;
  }

  sinusoid(t, d, width) {
    const { kind, offset } = this.config.positions, half = kind === "sinusoidal" ? Math.ceil(width / 2) : Math.floor(width / 2);
    if (kind === "sinusoidal") {
      const angle = t / 10000 ** (2 * (d >> 1) / width);
      return d % 2 ? Math.cos(angle) : Math.sin(angle);
    }
    if (kind === "sinusoidal_halves") {
      const sines = Math.ceil(width / 2), angle = t / 10000 ** (2 * (d % sines) / width);
      return d < sines ? Math.sin(angle) : Math.cos(angle);
    }
    if (d >= 2 * half) return 0;
    const step = Math.fround(-Math.log(10000) / Math.max(half - 1, 1)), i = d % half;
    const angle = Math.fround((t + offset) * Math.fround(Math.exp(Math.fround(i * step))));
    return d < half ? Math.sin(angle) : Math.cos(angle);
  }

  // Rotates pairs (i, i + P) of the first 2P channels of each head by the position of its row.
  rotate(x, T, N, start) {
    const { frequencies, rope_attention_factor: factor } = this.config.positions, H = x.length / T / N, P = frequencies.length;
    for (let t = 0; t < T; t++) for (let i = 0; i < P; i++) {
      const angle = (start + t) * frequencies[i], c = Math.cos(angle) * factor, s = Math.sin(angle) * factor;
      for (let n = 0; n < N; n++) {
        const at = (t * N + n) * H + i, a = x[at], b = x[at + P];
        x[at] = a * c - b * s;
        x[at + P] = b * c + a * s;
      }
    }
  }

  // Multi-head attention of T queries. `past` holds the keys and values of earlier tokens, or of the
  // encoded source; `sees(t, s)` is the mask.
  attention(path, x, T, { past, cross, start, sees, see }) {
    const c = this.config, H = c.head_dim[path.split("/")[0]], at = (part) => `${path}/${part}`;
    const [N, K] = ["query", "key"].map((part) => this.params[at(`${part}/kernel`)].shape[1] / H), G = N / K;
    let q = this.map(x, T, at("query")), k, v;
    if (c.attention.qk_norm) q = this.norm(q, T, at("query_norm"));
    if (cross) [k, v] = past;
    else {
      k = this.map(x, T, at("key"));
      v = this.map(x, T, at("value"));
      if (c.attention.qk_norm) k = this.norm(k, T, at("key_norm"));
      if (c.positions.kind === "rope" && this.change.positions) { this.rotate(q, T, N, start); this.rotate(k, T, K, start); }
      if (past) [k, v] = [joined(past[0], k), joined(past[1], v)];
    }
    const S = k.length / K / H, U = v.length / S / K, y = new Float32Array(T * N * U);
    const scores = new Float32Array(N * T * S), weights = new Float32Array(N * T * S);
    const scale = this.change.scale ? c.scores.scale ?? 1 / Math.sqrt(H) : 1;
    for (let n = 0; n < N; n++) {
      const g = Math.floor(n / G), off = this.change.heads.has(`${path}/heads/${n}`);
      for (let t = 0; t < T; t++) {
        const row = scores.subarray((n * T + t) * S, (n * T + t + 1) * S);
        for (let s = 0; s < S; s++) {
          const product = dot(q, (t * N + n) * H, k, (s * K + g) * H, H);
          row[s] = softCap(product * scale, c.scores.attn_logit_softcapping);
        }
        const w = softmax(row, (s) => sees(t, s)), to = (t * N + n) * U;
        weights.set(w, (n * T + t) * S);
        if (!off) for (let s = 0; s < S; s++) if (w[s]) for (let u = 0; u < U; u++) y[to + u] += w[s] * v[(s * K + g) * U + u];
      }
    }
    const out = this.map(y, T, at("out"));
    if (see) {
      see(at("q"), [N, T, H], headsFirst(q, T, N));
      see(at("k"), [K, S, H], headsFirst(k, S, K));
      see(at("v"), [K, S, U], headsFirst(v, S, K));
      see(at("scores"), [N, T, S], scores);
      see(at("weights"), [N, T, S], weights);
      see(at("heads"), [N, T, U], headsFirst(y, T, N));
      see(at("output"), [T, out.length / T], out);
    }
    return [out, [k, v]];
  }

  feedForward(path, x, T, see) {
    const { activation, gated } = this.config.feed_forward, f = ACTIVATIONS[activation];
    const hidden = this.map(x, T, `${path}/up`), gate = gated ? this.map(x, T, `${path}/gate`) : null;
    for (let i = 0; i < hidden.length; i++) hidden[i] = f(hidden[i]) * (gate ? gate[i] : 1);
    const y = this.map(hidden, T, `${path}/down`);
    if (see) {
      see(`${path}/hidden`, [T, hidden.length / T], hidden);
      see(`${path}/output`, [T, y.length / T], y);
    }
    return y;
  }

  // A sub-layer with its residual connection: post, pre or sandwich norms.
  async sublayer(path, x, T, f) {
    await this.pause();
    const placement = this.config.norm.placement, norm = `${path}_norm`;
    let y = f(placement === "post" ? x : this.norm(x, T, norm));
    if (placement === "sandwich") y = this.norm(y, T, `${norm}_after`);
    y = y.map((v, i) => v + x[i]);
    return placement === "post" ? this.norm(y, T, norm) : y;
  }

  // All blocks of a side; returns the last hidden states and the extended cache.
  async stack(side, x, T, { memory, cache, start = 0, hidden, see }) {
    const layers = this.config[`${side}_layers`], next = [], causal = side === "decoder" && this.change.mask;
    for (let l = 0; l < layers; l++) {
      const path = `${side}/blocks/${l}`, window = this.config.windows[l];
      if (see) see(`${path}/input`, [T, x.length / T], x);
      const sees = (t, s) => !(causal && s > start + t) && !(window !== null && Math.abs(start + t - s) >= window) && !hidden.has(s);
      x = await this.sublayer(`${path}/self_attention`, x, T, (y) => {
        const [out, kv] = this.attention(`${path}/self_attention`, y, T, { past: cache && cache.layers[l], start, sees, see });
        next.push(kv);
        return out;
      });
      if (memory) x = await this.sublayer(`${path}/cross_attention`, x, T, (y) =>
        this.attention(`${path}/cross_attention`, y, T, { past: memory.layers[l], cross: true, start, sees: (t, s) => !memory.hidden.has(s), see })[0]);
      x = await this.sublayer(`${path}/feed_forward`, x, T, (y) => this.feedForward(`${path}/feed_forward`, y, T, see));
      if (see) see(`${path}/output`, [T, x.length / T], x);
    }
    if (this.params[`${side}/final_norm/gain`]) {
      x = this.norm(x, T, `${side}/final_norm`);
      if (see) see(`${side}/final_norm`, [T, x.length / T], x);
    }
    return [x, { layers: next, length: start + T }];
  }

  // Encodes a source, and the keys and values of cross-attention once for all steps.
  async encode(tokens, see) {
    const S = tokens.length, hidden = new Set(this.change.hidden);
    const [x] = await this.stack("encoder", this.embed(tokens, "embedding/table", "encoder", 0), S, { hidden, see }), layers = [];
    for (let l = 0; l < this.config.decoder_layers; l++) {
      const path = `decoder/blocks/${l}/cross_attention`;
      let k = this.map(x, S, `${path}/key`);
      if (this.config.attention.qk_norm) k = this.norm(k, S, `${path}/key_norm`);
      layers.push([k, this.map(x, S, `${path}/value`)]);
    }
    return { layers, length: S, hidden };
  }

  // Reads more tokens; returns logits after the last of them, or after all, and the extended cache.
  async decode(tokens, { memory = null, cache = null, all = false, see = null } = {}) {
    const T = tokens.length, start = cache ? cache.length : 0;
    const table = this.params["decoder_embedding/table"] ? "decoder_embedding/table" : "embedding/table";
    const hidden = memory ? new Set() : this.change.hidden;
    const [x, next] = await this.stack("decoder", this.embed(tokens, table, "decoder", start), T, { memory, cache, start, hidden, see });
    const D = x.length / T, logits = await this.head(all ? x : x.subarray((T - 1) * D), all ? T : 1, table);
    if (see) see("logits", [logits.length / this.config.vocab_out, this.config.vocab_out], logits);
    return { logits, cache: next };
  }

  async head(x, T, table) {
    const c = this.config, W = this.params["head/table"] || this.params[table], b = this.params["head/bias"];
    const [V, D] = W.shape, y = new Float32Array(T * V);
    for (let t = 0; t < T; t++) {
      await this.pause();
      for (let v = 0; v < V; v++) {
        y[t * V + v] = softCap(dot(x, t * D, W.x, v * D, D) * c.head.scale + (b ? b.x[v] : 0), c.head.final_logit_softcapping);
      }
    }
    return y;
  }

  // An encoder with a head: logits of the vocabulary at each token, or of the labels.
  async read(tokens, { types = null, see = null } = {}) {
    const T = tokens.length, c = this.config;
    let [x] = await this.stack("encoder", this.embed(tokens, "embedding/table", "encoder", 0, types), T, { hidden: this.change.hidden, see });
    let logits, shape;
    if (this.kind === "masked") {
      if (this.params["transform/kernel"]) {
        x = this.map(x, T, "transform").map(ACTIVATIONS[c.head.transform_activation]);
        x = this.norm(x, T, "transform_norm");
      }
      logits = await this.head(x, T, "embedding/table");
      shape = [T, c.vocab_out];
    } else {
      let rows = x;
      if (this.kind === "classifier") {
        rows = x.subarray(0, x.length / T);
        if (this.params["pooler/kernel"]) rows = this.map(rows, 1, "pooler").map(ACTIVATIONS[c.head.pooler_activation]);
      }
      logits = this.map(rows, rows.length / c.d_model, "labels");
      shape = this.kind === "classifier" ? [logits.length] : [T, logits.length / T];
    }
    if (see) see("logits", shape, logits);
    return { logits, shape };
  }
}

// --- decoding ------------------------------------------------------------------------------------

// Largest values first; among equals the first index.
function best(values, count, allowed = () => true) {
  const found = [];
  for (let i = 0; i < values.length; i++) {
    if (!allowed(i) || values[i] === -Infinity) continue;
    if (found.length < count || values[i] > values[found[found.length - 1]]) {
      let at = found.length;
      while (at && values[i] > values[found[at - 1]]) at--;
      found.splice(at, 0, i);
      if (found.length > count) found.pop();
    }
  }
  return found;
}

const penalty = (length, { normalization, length_penalty: alpha }) =>
  (normalization === "gnmt" ? (5 + length) / 6 : normalization === "power" ? length : 1) ** alpha;

// Beam search as in the package: the best ends become hypotheses, the best other continuations stay
// live, until no beam can become better. At the limit the end token is scored. Returns hypotheses,
// best first, and the tree of all continuations that were compared.
async function beamSearch(model, begin, memory, { beams, limit, search }) {
  const { ends, never } = model.ids, banned = new Set(never), last = new Set(ends), nodes = [];
  let live = [{ total: 0, tokens: [], node: -1, cache: null, next: begin }], finished = [];
  for (let t = 0; t < limit; t++) {
    for (const beam of live) {
      const r = await model.decode(beam.next, { memory, cache: beam.cache });
      beam.cache = r.cache;
      beam.log = logSoftmax(r.logits);
    }
    const onward = [], closing = [], final = t + 1 >= limit;
    live.forEach((beam, b) => {
      for (const token of best(beam.log, beams, (i) => !banned.has(i) && !last.has(i)))
        onward.push({ beam, b, token, total: beam.total + beam.log[token] });
      const end = best(beam.log, 1, (i) => last.has(i))[0];
      closing.push({ beam, b, token: end, total: beam.total + beam.log[end], end: true });
    });
    const order = (a, b) => b.total - a.total || a.b - b.b || a.token - b.token;
    onward.sort(order);
    const top = onward.slice(0, beams), divisor = penalty(t + 1, search), step = [];
    for (const way of closing) {
      const before = [...top, ...closing].filter((other) => other.total > way.total).length;
      way.among = before < beams;
      way.kept = way.among || (final && beams > 1);
    }
    for (const way of [...onward, ...closing.filter((way) => way.among || way.kept)].sort(order)) {
      const live = !way.end && top.includes(way) && !(final && beams > 1);
      way.node = nodes.length;
      nodes.push({ token: way.token, parent: way.beam.node, step: t + 1, total: way.total,
        fate: way.end ? (way.kept ? "ended" : "pruned") : live ? "kept" : "pruned" });
      step.push(way);
    }
    const add = (way, ended) => finished.push({ tokens: [...way.beam.tokens, way.token], total: way.total, score: way.total / divisor, ended, node: way.node });
    for (const way of closing) if (way.kept) add(way, way.among);
    if (final && beams === 1) for (const way of top) add(way, false);
    finished = finished.map((h, i) => [h, i]).sort(([a, i], [b, j]) => b.score - a.score || i - j).map(([h]) => h).slice(0, beams);
    const reach = top.length ? top[0].total / penalty(limit, search) : -Infinity;
    if (final || (finished.length >= beams && finished[beams - 1].score >= reach)) break;
    live = top.map((way) => ({ total: way.total, tokens: [...way.beam.tokens, way.token], node: way.node, cache: way.beam.cache, next: [way.token] }));
    if (!live.length) break;
  }
  return { hypotheses: finished, nodes };
}

// Greedy search: the most probable token, until an end or the limit.
async function greedy(model, begin, memory, limit) {
  const banned = new Set(model.ids.never), ends = new Set(model.ids.ends), out = [];
  let cache = null, next = begin;
  while (out.length < limit) {
    const r = await model.decode(next, { memory, cache });
    const token = best(r.logits, 1, (i) => !banned.has(i))[0];
    cache = r.cache;
    out.push(token);
    if (ends.has(token)) break;
    next = [token];
  }
  return out;
}

// The distribution that a sampler draws from: temperature, then the nucleus of probability p.
function nucleus(logits, { temperature, topP }, banned) {
  const scaled = logSoftmax(Float64Array.from(logits, (v, i) => (banned.has(i) ? -Infinity : v / Math.max(temperature, 1e-6))));
  const order = Array.from(scaled.keys()).sort((a, b) => scaled[b] - scaled[a] || a - b), out = [];
  let sum = 0;
  for (const id of order) {
    if (out.length && (sum >= topP || scaled[id] === -Infinity)) break;
    out.push([id, Math.exp(scaled[id])]);
    sum += Math.exp(scaled[id]);
  }
  return out.map(([id, p]) => [id, p / sum]);
}

// Random numbers from a seed (mulberry32).
function randomNumbers(seed) {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

async function sample(model, begin, memory, limit, settings, seed) {
  const banned = new Set(model.ids.never), ends = new Set(model.ids.ends), random = randomNumbers(seed), out = [];
  let cache = null, next = begin;
  while (out.length < limit) {
    const r = await model.decode(next, { memory, cache }), choices = nucleus(r.logits, settings, banned);
    let left = random(), token = choices[choices.length - 1][0];
    for (const [id, p] of choices) { left -= p; if (left < 0) { token = id; break; } }
    cache = r.cache;
    out.push(token);
    if (ends.has(token)) break;
    next = [token];
  }
  return out;
}
