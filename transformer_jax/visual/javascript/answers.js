// What the page asks of the model, and who answers: a Worker, or the page's own thread where a browser
// refuses Workers. A newer question ends the one that is being answered.
"use strict";

const DRAWN = /_attention\/(q|k|v|scores|weights|heads)$/; // the activations that the page shows
const REST = 40; // milliseconds of work until messages may arrive

// What a decoder read before each token that it wrote.
const inputsOf = ({ kind, ids: { begin } }, ids, output) => [...(kind === "decoder" ? ids : begin), ...output.slice(0, -1)];

class Answers {
  constructor(packed) {
    this.packed = packed;
    this.model = new Model(packed);
    packed.weights = null;
  }

  // Where writing begins, and how many tokens it may have.
  async start(ids, see = null) {
    const { ids: { begin }, search, config: { positions: { max_length: room } } } = this.packed;
    if (this.model.kind === "decoder") return { memory: null, begin: ids, limit: Math.min(search.max_new_tokens / 2, room - ids.length) };
    const limit = Math.min(Math.floor(search.max_len_a * ids.length) + search.max_len_b, room - begin.length + 1);
    return { memory: await this.model.encode(ids, see), begin, limit };
  }

  async beams(ids, beams, alpha) {
    const { memory, begin, limit } = await this.start(ids);
    return beamSearch(this.model, begin, memory, { beams, limit, search: { ...this.packed.search, length_penalty: alpha } });
  }

  async greedy(ids) {
    const { memory, begin, limit } = await this.start(ids);
    return greedy(this.model, begin, memory, limit);
  }

  // Teacher forcing of the text that was written, or the encoder: logits by row.
  async forward(ids, output, see = null) {
    if (!output) return (await this.model.read(ids, { see })).logits;
    const { memory } = await this.start(ids, see);
    return (await this.model.decode(inputsOf(this.packed, ids, output), { memory, all: true, see })).logits;
  }

  // The tokens that the model writes after a text, and what it computes for both.
  async text({ ids }) {
    const { kind } = this.model, { num_beams: beams, length_penalty: alpha } = this.packed.search, seen = {};
    const output = kind === "decoder" ? await this.greedy(ids) : kind === "encoder-decoder" ? (await this.beams(ids, beams, alpha)).hypotheses[0].tokens : null;
    const logits = await this.forward(ids, output, (name, shape, x) => { if (DRAWN.test(name)) seen[name] = { shape, x }; });
    return { output: output ?? [], logits, seen };
  }

  async search({ ids, beams, alpha, sampler, seed }) {
    const found = this.model.kind === "encoder-decoder" ? await this.beams(ids, beams, alpha) : {}, samples = [];
    const { memory, begin, limit } = await this.start(ids);
    for (let i = 0; i < 3; i++) samples.push(await sample(this.model, begin, memory, limit, sampler, seed * 3 + i));
    return { ...found, samples };
  }

  // Logits of the same text under a change, and the text that greedy search writes then.
  async change({ ids, output, change }) {
    this.model.change = change;
    return { logits: await this.forward(ids, output), text: output ? await this.greedy(ids) : null };
  }
}

// Returns the function that gets the model, `{packed}`, and then questions, `{id, work, ...}`, whose
// answers `reply` sends with the arrays that may be moved instead of copied.
function answering(reply) {
  let model, answers, newest, rested = performance.now();
  class Superseded extends Error {}
  return async ({ packed, id, work, ...given }) => {
    if (packed) { model = packed; return; }
    newest = id;
    try {
      answers ??= new Answers(model);
      answers.model.change = unchanged();
      answers.model.pause = async () => {
        if (performance.now() - rested < REST) return;
        await new Promise((done) => { setTimeout(done); });
        rested = performance.now();
        if (id !== newest) throw new Superseded();
      };
      const answer = await answers[work](given);
      const arrays = [answer.logits, ...Object.values(answer.seen ?? {}).map(({ x }) => x)];
      reply({ id, answer }, arrays.filter((x) => x).map((x) => x.buffer));
    } catch (error) {
      if (!(error instanceof Superseded)) reply({ id, error: error.message });
    }
  };
}

if (typeof importScripts === "function") {
  const receive = answering((said, moved) => postMessage(said, moved));
  onmessage = (event) => receive(event.data);
  postMessage({ ready: true });
}
