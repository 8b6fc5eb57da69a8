// Runs the code of the page on a model and on cases of standard input; writes what it computes.
const fs = require("fs"), path = require("path");
const folder = path.join(__dirname, "../../transformer_jax/visual/javascript");
const { Model, beamSearch, greedy } = require(path.join(folder, "engine.js"));
const { Tokenizer } = require(path.join(folder, "tokenizer.js"));

const { packed, cases } = JSON.parse(fs.readFileSync(0));
const model = packed.arrays ? new Model(packed) : null;
const tokenizer = packed.tokenizer ? new Tokenizer({ file: packed.tokenizer, ids: packed.ids, text: packed.text }) : null;

function computed(one) {
  const seen = {}, out = {}, see = one.see === false ? null : (name, shape, x) => { seen[name] = [shape, Array.from(x)]; };
  if (one.text !== undefined) {
    out.ids = one.plain ? tokenizer.encode(one.text) : tokenizer.read(one.text);
    out.decoded = tokenizer.decode(out.ids);
    out.names = out.ids.map((id) => tokenizer.name(id));
  }
  if (!model) return out;
  Object.assign(model.change, { heads: new Set(one.heads), hidden: new Set(one.hidden) });
  const ids = one.ids || out.ids, reads = model.kind === "encoder-decoder";
  const memory = reads ? model.encode(ids, see) : null;
  if (one.target) model.decode(one.target, { memory, all: true, see });
  if (!reads && model.kind !== "decoder") model.read(ids, { types: one.types || null, see });
  if (one.limit) {
    const begin = reads ? packed.ids.begin : ids;
    out.greedy = greedy(model, begin, memory, one.limit);
    out.beams = beamSearch(model, begin, memory, { beams: one.beams, limit: one.limit, search: packed.search }).hypotheses.map((h) => [h.tokens, h.score]);
  }
  if (one.steps) { // one token at a time, with a cache
    let cache = null;
    out.steps = one.steps.map((token) => { const r = model.decode([token], { memory, cache }); cache = r.cache; return Array.from(r.logits); });
  }
  return { ...out, seen };
}
process.stdout.write(JSON.stringify(cases.map(computed)));
