// Runs the code of the page on a model and on cases of standard input; writes what it computes.
const fs = require("fs"), path = require("path"), vm = require("vm");
const read = (name) => fs.readFileSync(path.join(__dirname, "../../transformer_jax/visual/javascript", `${name}.js`), "utf8");
let time = 0;
Object.defineProperty(globalThis, "performance", { value: { now: () => (time += 1000) } }); // every pause is due
const code = ["engine", "answers", "tokenizer"].map(read).join("");
const { Model, Tokenizer, answering, beamSearch, greedy } = vm.runInThisContext(`${code}; ({ Model, Tokenizer, answering, beamSearch, greedy })`);

const { packed, cases, questions = [] } = JSON.parse(fs.readFileSync(0));
const model = packed.arrays ? new Model(packed) : null;
const tokenizer = packed.tokenizer ? new Tokenizer({ file: packed.tokenizer, ids: packed.ids, text: packed.text }) : null;

async function computed(one) {
  const seen = {}, out = {}, see = one.see === false ? null : (name, shape, x) => { seen[name] = [shape, Array.from(x)]; };
  if (one.text !== undefined) {
    out.ids = one.plain ? tokenizer.encode(one.text) : tokenizer.read(one.text);
    out.decoded = tokenizer.decode(out.ids);
    out.names = out.ids.map((id) => tokenizer.name(id));
  }
  if (!model) return out;
  Object.assign(model.change, { heads: new Set(one.heads), hidden: new Set(one.hidden) });
  const ids = one.ids || out.ids, reads = model.kind === "encoder-decoder";
  const memory = reads ? await model.encode(ids, see) : null;
  if (one.target) await model.decode(one.target, { memory, all: true, see });
  if (!reads && model.kind !== "decoder") await model.read(ids, { types: one.types || null, see });
  if (one.limit) {
    const begin = reads ? packed.ids.begin : ids;
    out.greedy = await greedy(model, begin, memory, one.limit);
    out.beams = (await beamSearch(model, begin, memory, { beams: one.beams, limit: one.limit, search: packed.search })).hypotheses.map((h) => [h.tokens, h.score]);
  }
  if (one.steps) { // one token at a time, with a cache
    let cache = null;
    out.steps = [];
    for (const token of one.steps) {
      const r = await model.decode([token], { memory, cache });
      cache = r.cache;
      out.steps.push(Array.from(r.logits));
    }
  }
  return { ...out, seen };
}
(async () => {
  const all = [], receive = answering(({ id, answer }) => all.push([id, Array.from(answer.logits)]));
  receive({ packed: { ...packed } });
  await Promise.all(questions.map(receive));
  for (const one of cases) all.push(await computed(one));
  process.stdout.write(JSON.stringify(all));
})();
