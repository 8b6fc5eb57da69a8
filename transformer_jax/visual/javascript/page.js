// The page: four views of one model. Text of the model and of the reader is set as text, never as HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const tokenizer = new Tokenizer({ file: data.tokenizer, ids: data.ids, text: data.text });
const $ = (id) => document.getElementById(id);
const make = (tag, props = {}, ...inside) => {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...inside);
  return node;
};
const { kind: family, config } = data;
const writes = family === "encoder-decoder" || family === "decoder";
const SHOWN = 8; // probabilities in a list
const NAMES = { encoder: "Encoder self-attention", decoder: "Decoder self-attention", cross: "Cross-attention" };
const KINDS = { "encoder-decoder": ["encoder", "decoder", "cross"], decoder: ["decoder"], masked: ["encoder"], classifier: ["encoder"], tagger: ["encoder"] }[family];
const layersOf = (kind) => config[kind === "encoder" ? "encoder_layers" : "decoder_layers"];
const pathOf = (kind, layer) => `${kind === "encoder" ? "encoder" : "decoder"}/blocks/${layer}/${kind === "cross" ? "cross" : "self"}_attention`;
const headsOf = (kind) => {
  const [, [, width]] = data.arrays[`${pathOf(kind, 0)}/query/kernel`];
  return width / config.head_dim[kind === "encoder" ? "encoder" : "decoder"];
};

// What the model computed for the text: ids it read, tokens it wrote, activations by name, logits;
// the searches and the changes of its other views, null until they are asked for.
const now = { ids: [], output: [], seen: {}, logits: null, found: null, changed: null };
const state = { view: "head", kind: KINDS[KINDS.length - 1], layer: 0, head: 0, row: 0, column: 0, step: 1, stepLayer: "mean", changedStep: 1, seed: 1, dark: false };
if (["steps", "change", ...(writes ? ["search"] : [])].includes(location.hash.slice(1))) state.view = location.hash.slice(1);
let change = unchanged();

const inputs = () => inputsOf(data, now.ids, now.output);
const banned = new Set(data.ids.never);
const written = (tokens) => tokens.filter((id) => !data.ids.ends.includes(id));

// --- asking the model ----------------------------------------------------------------------------

// Of two questions the first is dropped: its answer, if it comes, is not heard.
const asking = { id: 0, send: null, question: null };
function ask(work, given) {
  const id = ++asking.id;
  busy(true);
  return new Promise((resolve, reject) => {
    Object.assign(asking, { question: { id, work, ...given }, resolve, reject });
    asking.send?.(asking.question);
  });
}
function hear({ id, answer, error }) {
  if (id !== asking.id) return;
  busy(false);
  if (answer) asking.resolve(answer); else asking.reject(new Error(error));
}
function drop() {
  asking.id++;
  busy(false);
}
function busy(yes) {
  $("busy").hidden = !yes;
  document.body.dataset.busy = yes ? "yes" : "no";
}

// The model moves to a Worker made of the page's own script; a browser that refuses it computes here.
function begin(send) {
  send({ packed: { ...data, tokenizer: null, weights: $("weights").textContent } });
  $("weights").remove();
  asking.send = send;
  if (asking.question) send(asking.question);
}
function inThisThread() {
  $("where").textContent = "This browser allows no Worker here, so that the page stands still while a large model computes.";
  const receive = answering(hear);
  begin((question) => setTimeout(receive, 20, question));
}
function inWorker() {
  const worker = new Worker(URL.createObjectURL(new Blob([$("engine").textContent], { type: "text/javascript" })));
  worker.onmessage = ({ data: said }) => { if (said.ready) begin((question) => worker.postMessage(question)); else hear(said); };
  worker.onerror = (event) => { if (asking.send) hear({ id: asking.id, error: event.message }); else inThisThread(); };
}

function read() {
  const text = $("text").value, ids = tokenizer.read(text), limit = (data.text.longest ?? config.positions.max_length) - (family === "decoder" ? 1 : 0);
  if (!tokenizer.encode(tokenizer.prepare(text, "source").replaceAll("[MASK]", " ")).length && !(family === "masked" && text.includes("[MASK]"))) throw new Error("The text is empty: type one.");
  if (ids.length > limit) throw new Error(`The text has ${ids.length} tokens: at most ${limit} are read.`);
  return ids;
}

// Views are of the text above them, or hidden; while a text is computed, those of the last one rest.
function ready(how) {
  document.body.dataset.ready = how;
  for (const node of [$("answer"), $("choices"), ...Object.keys(VIEWS).map((view) => $(`view-${view}`))]) node.inert = how === "soon";
  if (how === "soon") return;
  $("choices").hidden = how === "no";
  for (const view of Object.keys(VIEWS)) $(`view-${view}`).hidden = how === "no" || view !== state.view;
}

// The answer to a question of a view, or null after an error, which the page shows.
const answered = (work, given) => ask(work, given).catch((error) => { failed(error); return null; });

async function run() {
  const begun = performance.now();
  $("wrong").hidden = true;
  $("state").textContent = "computing…";
  ready("soon");
  try {
    const ids = read();
    Object.assign(now, { ids, found: null, changed: null }, await ask("text", { ids }));
  } catch (error) {
    failed(error);
    $("state").textContent = $("answer").textContent = "";
    ready("no");
    return;
  }
  change = unchanged();
  $("state").textContent = `${now.ids.length} tokens read${writes ? `, ${now.output.length} written` : ""}, in ${Math.round(performance.now() - begun)} ms`;
  showAnswer();
  const { shape: [, , S], x } = now.seen[`${pathOf(state.kind, state.layer)}/weights`];
  Object.assign(state, { row: 0, column: best(x.subarray(state.head * x.length / headsOf(state.kind)).subarray(0, S), 1)[0], step: firstStep(), changedStep: firstStep() });
  buildChange();
  ready("yes");
  show();
}
function failed(error) {
  drop();
  $("wrong").textContent = error.message;
  $("wrong").hidden = false;
}

function showAnswer() {
  if (writes) $("answer").textContent = tokenizer.decode(family === "decoder" ? [...now.ids.slice(data.ids.before.length), ...now.output] : now.output);
  else if (family === "masked") $("answer").textContent = masks().map((t) => topTokens(row(now.logits, t), 1)[0]).map(([id, p]) => `“${tokenizer.name(id)}” ${percent(p)}`).join(" · ") || "No [MASK]: Step by step shows what would stand at each place.";
  else if (family === "classifier") $("answer").textContent = labelShares(now.logits).slice(0, 1).map(([label, p]) => `${label} ${share(p)}`).join("");
  else $("answer").textContent = now.ids.map((id, t) => `${tokenizer.name(id)}/${labelShares(row(now.logits, t))[0][0]}`).slice(1, -1).join(" ");
}

// --- numbers -------------------------------------------------------------------------------------

const percent = (p) => `${(100 * p).toFixed(p < 0.0995 ? 2 : 1)} %`;
const share = (p) => (data.task === "regress" ? p.toFixed(4) : percent(p));
const width = () => (writes || family === "masked" ? config.vocab_out : data.labels.length);
const row = (logits, t) => logits.subarray(t * width(), (t + 1) * width());
const masks = () => now.ids.flatMap((id, t) => (id === data.ids.mask ? [t] : []));
const firstStep = () => (writes ? 1 : family === "masked" && masks().length ? masks()[0] + 1 : 1);
const steps = () => (writes ? now.output.length : family === "classifier" ? 1 : now.ids.length);
// The row of logits of a step; a decoder's first token is written after its last input.
const logitRow = (step) => (family === "decoder" ? now.ids.length - 1 : family === "encoder-decoder" ? data.ids.begin.length - 1 : 0) + step - 1;

function topTokens(logits, count) {
  const log = logSoftmax(logits), allowed = (i) => !(writes ? banned.has(i) : tokenizer.special.has(i));
  return best(log, count, allowed).map((id) => [id, Math.exp(log[id])]);
}
function labelShares(logits) {
  const log = logSoftmax(logits);
  const each = Array.from(logits, (v, i) => [data.labels[i] ?? (data.task === "regress" ? "value" : String(i)), data.task === "regress" ? v : data.task === "multi_label" ? sigmoid(v) : Math.exp(log[i])]);
  return each.sort((a, b) => b[1] - a[1]);
}
// Names and shares of a step, before or after a change; `first` are entries to show in any case.
function shares(logits, step, keep = []) {
  if (family === "classifier") return labelShares(logits);
  if (family === "tagger") return labelShares(row(logits, step - 1));
  const one = row(logits, logitRow(step)), log = logSoftmax(one), ids = topTokens(one, SHOWN).map(([id]) => id);
  for (const id of keep) if (!ids.includes(id)) ids.push(id);
  return ids.map((id) => [tokenizer.name(id), Math.exp(log[id]), id]);
}

// --- colours -------------------------------------------------------------------------------------

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
function tint(value) { // from -1, orange, over 0, to 1, blue
  const low = rgb(css("--low")), high = rgb(css(value < 0 ? "--mark" : "--accent")), a = Math.min(1, Math.abs(value));
  return `rgb(${low.map((v, i) => Math.round(v + (high[i] - v) * a)).join(" ")})`;
}
const inkOn = (value) => (Math.abs(value) > 0.55 ? css("--card") : css("--ink"));

// --- view 1: one head in numbers -----------------------------------------------------------------

const rowNames = (kind) => (kind === "encoder" ? now.ids : inputs()).map((id) => tokenizer.name(id));
const columnNames = (kind) => (kind === "decoder" ? inputs() : now.ids).map((id) => tokenizer.name(id));
function ofHead(part, head) {
  const { shape, x } = now.seen[`${pathOf(state.kind, state.layer)}/${part}`], [N, R, C] = shape;
  const n = part === "k" || part === "v" ? Math.floor((head * N) / headsOf(state.kind)) : head;
  return { R, C, x: x.subarray(n * R * C, (n + 1) * R * C) };
}

function headView() {
  const { kind, layer, head } = state;
  $("kind").value = kind;
  fill("number-layer", layersOf(kind), layer);
  fill("number-head", headsOf(kind), head);
  $("head-what").textContent = `${NAMES[kind]}, layer ${layer + 1}, head ${head + 1}: ${pathOf(kind, layer)}`;
  const reads = rowNames(kind), read = columnNames(kind), weights = ofHead("weights", head);
  const mask = { R: weights.R, C: weights.C, x: Float32Array.from(ofHead("scores", head).x, (_, i) => (visible(kind, layer, Math.floor(i / weights.C), i % weights.C) ? 1 : 0)) };
  const numbers = (count) => Array.from({ length: count }, (_, i) => String(i));
  const parts = [
    ["q", "queries", ofHead("q", head), reads, null],
    ["k", "keys", ofHead("k", head), null, read],
    ["scores", "q · k × scale", ofHead("scores", head), reads, read],
    ["mask", "which keys a query sees", mask, reads, read],
    ["weights", "softmax of the visible scores", weights, reads, read],
    ["v", "values", ofHead("v", head), null, read],
    ["heads", "weights × v", ofHead("heads", head), reads, null],
  ];
  const figures = parts.map(([name, what, m, rows, columns]) => matrix(name, what, m, rows ?? columns, rows && columns ? columns : numbers(m.C), rows ? "row" : "column", Boolean(rows && columns)));
  $("matrices").replaceChildren(...figures.map((figure) => figure.node));
  headView.draw = () => figures.forEach((figure) => figure.draw());
  pick(Math.min(state.row, weights.R - 1), Math.min(state.column, weights.C - 1));
}
const visible = (kind, layer, t, s) => {
  const window = config.windows[layer];
  if (kind === "cross") return true;
  return !(kind === "decoder" && s > t) && !(window !== null && Math.abs(t - s) >= window);
};

function pick(t, s) {
  state.row = t;
  state.column = s;
  const { kind, head } = state, q = ofHead("q", head), k = ofHead("k", head), scores = ofHead("scores", head), w = ofHead("weights", head);
  const terms = Array.from({ length: Math.min(3, q.C) }, (_, h) => `${q.x[t * q.C + h].toFixed(2)}·${k.x[s * k.C + h].toFixed(2)}`).join(" + ");
  const scale = config.scores.scale ?? 1 / Math.sqrt(q.C), seen = visible(kind, state.layer, t, s);
  $("head-said").replaceChildren(make("b", { textContent: `“${rowNames(kind)[t]}”` }), " reads ", make("b", { textContent: `“${columnNames(kind)[s]}”` }),
    `: (${terms}${q.C > 3 ? " + …" : ""}) × ${scale.toFixed(3)} = ${scores.x[t * scores.C + s].toFixed(3)}; `, seen ? "visible; weight " : "hidden by the mask; weight ", make("b", { textContent: w.x[t * w.C + s].toFixed(4) }));
  headView.draw();
}

// A heat map with names, whose cursor is the row and column of the page. `axis` is what its rows are.
function matrix(name, what, m, rows, columns, axis, square) {
  const canvas = make("canvas", { tabIndex: 0 }), room = window.innerWidth < 700 ? 215 : 280, cell = Math.max(square ? 14 : 5, Math.min(24, Math.floor(room / m.C)));
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${name}: ${what}, ${m.R} rows by ${m.C} columns`);
  const caption = make("figcaption", {}, make("b", { textContent: name }), " ", make("span", { textContent: `${what} [${m.R} × ${m.C}]` }));
  const said = make("span", {});
  const node = make("figure", {}, caption, make("div", { className: "scroll" }, canvas), make("figcaption", {}, said));
  const short = (word) => (word.length > 14 ? word.slice(0, 13) + "…" : word);
  let left = 0, top = 0, at = [0, 0];
  const largest = m.x.reduce((most, v) => Math.max(most, Math.abs(v)), 1e-9);
  function draw() {
    const pen = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1, font = "12px system-ui, 'DejaVu Sans', sans-serif";
    pen.font = font;
    left = Math.ceil(Math.max(...rows.map((word) => pen.measureText(short(word)).width))) + 8;
    top = square ? Math.ceil(Math.max(...columns.map((word) => pen.measureText(short(word)).width)) * 0.8) + 14 : 4;
    const slant = square ? 60 : 4, w = left + cell * m.C + slant, h = top + Math.max(cell, 14) * m.R + 4;
    Object.assign(canvas, { width: w * ratio, height: h * ratio });
    Object.assign(canvas.style, { width: `${w}px`, height: `${h}px` });
    pen.scale(ratio, ratio);
    pen.font = font;
    pen.textBaseline = "middle";
    const tall = Math.max(cell, 14), marked = axis === "row" ? state.row : state.column;
    for (let r = 0; r < m.R; r++) {
      pen.fillStyle = r === marked ? css("--ink") : css("--soft");
      pen.textAlign = "right";
      pen.fillText(short(rows[r]), left - 5, top + (r + 0.5) * tall);
      for (let c = 0; c < m.C; c++) {
        pen.fillStyle = tint(m.x[r * m.C + c] / largest);
        pen.fillRect(left + c * cell, top + r * tall, cell - (cell > 6 ? 1 : 0), tall - 1);
      }
    }
    pen.textAlign = "left";
    if (square) columns.forEach((word, c) => {
      pen.save();
      pen.translate(left + (c + 0.5) * cell, top - 6);
      pen.rotate(-0.9);
      pen.fillStyle = c === state.column ? css("--ink") : css("--soft");
      pen.fillText(short(word), 0, 0);
      pen.restore();
    });
    pen.strokeStyle = css("--mark");
    pen.lineWidth = 2;
    if (square) pen.strokeRect(left + state.column * cell - 1, top + state.row * tall - 1, cell + 1, tall + 1);
    else pen.strokeRect(left - 1, top + marked * tall - 1, cell * m.C + 1, tall + 1);
    const r = marked, c = square ? state.column : Math.min(at[1], m.C - 1);
    said.textContent = `${rows[r]}${square ? ` → ${columns[c]}` : `, dimension ${c}`}: ${name === "mask" ? (m.x[r * m.C + c] ? "visible" : "hidden") : m.x[r * m.C + c].toFixed(4)}`;
  }
  const move = (r, c) => {
    at = [Math.min(Math.max(r, 0), m.R - 1), Math.min(Math.max(c, 0), m.C - 1)];
    if (square) pick(at[0], at[1]);
    else if (axis === "row") pick(at[0], state.column);
    else pick(state.row, at[0]);
  };
  canvas.onmousemove = (event) => {
    const c = Math.floor((event.offsetX - left) / cell), r = Math.floor((event.offsetY - top) / Math.max(cell, 14));
    if (r >= 0 && c >= 0 && r < m.R && c < m.C) move(r, c);
  };
  canvas.onkeydown = (event) => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    const r = axis === "row" ? state.row : state.column;
    move(r + by[0], (square ? state.column : at[1]) + by[1]);
  };
  return { node, draw };
}

// --- view 2: step by step ------------------------------------------------------------------------

function stepsView() {
  const kind = family === "encoder-decoder" ? "cross" : KINDS[0], L = layersOf(kind), step = state.step;
  $("step-layer").replaceChildren(make("option", { value: "mean", textContent: "mean of all" }), ...Array.from({ length: L }, (_, i) => make("option", { value: String(i), textContent: String(i + 1) })));
  $("step-layer").value = state.stepLayer;
  slider("step", "stepped", steps(), step, `${step} of ${steps()}`);
  const t = writes ? logitRow(step) : step - 1, read = kind === "decoder" ? inputs().slice(0, t + 1) : now.ids;
  const layers = state.stepLayer === "mean" ? Array.from({ length: L }, (_, i) => i) : [Number(state.stepLayer)];
  const shade = new Float64Array(read.length);
  for (const layer of layers) {
    const { shape: [N, T, S], x } = now.seen[`${pathOf(kind, layer)}/weights`];
    for (let n = 0; n < N; n++) for (let s = 0; s < read.length; s++) shade[s] += x[(n * T + t) * S + s] / N / layers.length;
  }
  const largest = Math.max(...shade, 1e-9);
  $("steps-what").textContent = writes ? "Decoding, token by token" : family === "classifier" ? "What the classified token reads" : "What a token reads";
  $("reads-title").textContent = `What it reads (${NAMES[kind].toLowerCase()}, mean of all heads)`;
  $("reads").replaceChildren(...read.map((id, s) => {
    const word = make("span", { textContent: tokenizer.name(id), title: percent(shade[s]) });
    word.style.background = tint(shade[s] / largest);
    word.style.color = inkOn(shade[s] / largest);
    return word;
  }));
  $("writes-title").textContent = writes ? "What it writes" : "The token that reads";
  const tokens = writes ? now.output : now.ids;
  $("writes").replaceChildren(...tokens.map((id, i) => {
    const button = make("button", { type: "button", textContent: tokenizer.name(id) });
    button.setAttribute("aria-pressed", String(i + 1 === step));
    button.onclick = () => {
      go(i + 1);
      $("writes").children[i].focus(); // the button of this press is gone
    };
    return button;
  }));
  for (const id of ["back", "next", "step-of", "writes", "writes-title"]) $(id).hidden = family === "classifier";
  $("probabilities-title").textContent = writes ? `The next token, after “${tokenizer.name(inputs()[t])}”` : family === "masked" ? `Which token stands at “${tokenizer.name(now.ids[t])}”` : "Labels";
  bars("probabilities", shares(now.logits, step), null, writes ? now.output[step - 1] : null);
}

// A table of names with bars; `was` are shares before a change, in the same order.
function bars(table, entries, was, chosen) {
  const full = data.task === "regress" ? Math.max(...entries.map(([, p]) => Math.abs(p)), 1e-9) : 1;
  $(table).replaceChildren(make("tbody", {}, ...entries.map(([name, p, id], i) => {
    const bar = (value, className) => { const line = make("i", { className }); line.style.width = `${100 * Math.min(1, Math.abs(value) / full)}%`; return line; };
    const cells = [make("td", { textContent: name }), make("td", {}, ...(was ? [bar(was[i], "was")] : []), bar(p, "")), make("td", { textContent: share(p) })];
    return make("tr", { className: id !== undefined && id === chosen ? "chosen" : "" }, ...cells);
  })));
}

// --- view 3: search ------------------------------------------------------------------------------

// What the search divides by, as in `penalty` of the engine.
const LENGTH = { gnmt: " divided by ((5 + length) / 6) to the power of the length penalty", power: " divided by the length to the power of the length penalty", none: "" };
const sampler = () => ({ temperature: Number($("temperature").value), topP: Number($("top-p").value) });

async function searchView() {
  const beamed = family === "encoder-decoder", alpha = Number($("alpha").value);
  $("beam-settings").hidden = $("found").hidden = $("samples-title").hidden = !beamed;
  $("alpha-of").hidden = data.search.normalization === "none";
  $("search-what").textContent = beamed ? "Beam search" : "Sampling";
  $("search-help").textContent = beamed
    ? `Each step keeps the most probable unfinished continuations. Finished texts are ranked by log-probability${LENGTH[data.search.normalization]}. Below them: samples of the same model.`
    : "A sampler divides logits by the temperature, keeps the most probable tokens until their probabilities sum to top-p, and draws one.";
  for (const id of ["beams", "alpha", "temperature", "top-p"]) $(`${id}-said`).textContent = $(id).value;
  if (!beamed) {
    $("tree-title").textContent = "What the sampler chooses from, for the first token";
    $("tree").replaceChildren(make("table", { className: "bars", id: "first" }));
    bars("first", nucleus(row(now.logits, logitRow(1)), sampler(), banned).slice(0, 20).map(([id, p]) => [tokenizer.name(id), p]), null, null);
  }
  if (!now.found && !(now.found = await answered("search", { ids: now.ids, beams: Number($("beams").value), alpha, sampler: sampler(), seed: state.seed }))) return;
  const { hypotheses = [], nodes, samples } = now.found, line = (tokens, said) => make("li", {}, tokenizer.decode(tokens), " ", make("small", { textContent: said }));
  const texts = new Set(), distinct = hypotheses.filter((one) => !texts.has(tokenizer.decode(one.tokens)) && texts.add(tokenizer.decode(one.tokens)));
  $("found").replaceChildren(...distinct.map((one) => line(one.tokens, `score ${one.score.toFixed(3)}, log-probability ${one.total.toFixed(3)}, ${one.tokens.length} tokens`)));
  $("samples").replaceChildren(...samples.map((tokens) => line(written(tokens), `${tokens.length} tokens`)));
  if (!beamed) return;
  $("tree-title").textContent = `The tree: ${nodes.length} continuations compared`;
  $("tree").replaceChildren(tree(nodes, hypotheses[0]));
}

const SVG = (tag, props = {}, text = "") => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
};
function tree(nodes, bestOne) {
  const path = new Set(), columns = [], wide = 136, tall = 19;
  const label = ({ token, total }) => { const name = tokenizer.name(token); return `${name.length > 9 ? name.slice(0, 8) + "…" : name} ${total.toFixed(1)}`; };
  for (let at = bestOne ? bestOne.node : -1; at >= 0; at = nodes[at].parent) path.add(at);
  const places = nodes.map((node) => {
    columns[node.step] = (columns[node.step] ?? 0) + 1;
    return [(node.step - 1) * wide + 54, columns[node.step] * tall];
  });
  const height = Math.max(...columns.filter(Number.isFinite)) * tall + 14, width = (columns.length - 1) * wide + 40;
  const svg = SVG("svg", { width, height, role: "img", "aria-label": `beam tree of ${nodes.length} continuations in ${columns.length - 1} steps` });
  svg.append(SVG("text", { x: 4, y: tall + 4 }, "start"));
  nodes.forEach((node, i) => {
    const [x, y] = places[i], from = node.parent < 0 ? [36, tall] : [places[node.parent][0] + 7.4 * label(nodes[node.parent]).length + 2, places[node.parent][1]];
    svg.append(SVG("line", { x1: from[0], y1: from[1], x2: x - 4, y2: y, class: path.has(i) ? "path" : node.fate }));
  });
  nodes.forEach((node, i) => {
    const [x, y] = places[i], text = SVG("text", { x, y: y + 4, class: path.has(i) ? "path" : node.fate }, label(node));
    text.append(SVG("title", {}, `${tokenizer.name(node.token)}: log-probability ${node.total.toFixed(4)}, ${node.fate}`));
    svg.append(text);
  });
  return svg;
}

// --- view 4: changes -----------------------------------------------------------------------------

function buildChange() {
  $("hide-title").textContent = family === "encoder-decoder" ? "Hide words of the source" : "Hide words of the text";
  $("no-mask-label").hidden = !writes;
  for (const id of ["no-scale", "no-mask", "no-positions"]) $(id).checked = false;
  const toggle = (text, set, value, label) => {
    const button = make("button", { type: "button", textContent: text });
    button.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-label", label);
    button.onclick = () => {
      if (set.has(value)) set.delete(value); else set.add(value);
      button.setAttribute("aria-pressed", String(set.has(value)));
      changed();
    };
    return button;
  };
  $("hide").replaceChildren(...now.ids.map((id, s) => toggle(tokenizer.name(id), change.hidden, s, `hide ${tokenizer.name(id)}`)));
  $("heads").replaceChildren(...KINDS.flatMap((kind) => [
    make("p", { textContent: NAMES[kind], style: "margin: 6px 0 2px" }),
    ...Array.from({ length: layersOf(kind) }, (_, layer) => make("div", { className: "heads" }, make("span", { textContent: `layer ${layer + 1}` }),
      ...Array.from({ length: headsOf(kind) }, (_, n) => toggle(String(n + 1), change.heads, `${pathOf(kind, layer)}/heads/${n}`, `${NAMES[kind]}, layer ${layer + 1}, head ${n + 1}`)))),
  ]));
}

async function changeView() {
  const switched = change.heads.size || change.hidden.size || !change.scale || !change.mask || !change.positions, step = state.changedStep;
  slider("changed-step", "changed-stepped", steps(), step, `${step} of ${steps()}`);
  $("changed-step-label").hidden = family === "classifier";
  if (!switched && !now.changed) {
    drop();
    now.changed = { logits: now.logits };
  }
  if (!now.changed && !(now.changed = await answered("change", { ids: now.ids, output: writes ? now.output : null, change }))) return;
  const { logits, text } = now.changed, before = shares(now.logits, step);
  const ids = writes || family === "masked" ? [...before.map(([, , id]) => id), ...shares(logits, step).slice(0, 3).map(([, , id]) => id)] : null;
  const unique = ids && [...new Set(ids)];
  const of = (all) => {
    if (!ids) { const each = shares(all, step), names = before.map(([name]) => name); return names.map((name) => each.find((one) => one[0] === name)); }
    const log = logSoftmax(row(all, logitRow(step)));
    return unique.map((id) => [tokenizer.name(id), Math.exp(log[id]), id]);
  };
  $("changed-title").textContent = writes ? `Token ${step}: “${tokenizer.name(now.output[step - 1])}”` : family === "masked" ? `“${tokenizer.name(now.ids[step - 1])}”` : "Labels";
  bars("changed", of(logits), of(now.logits).map(([, p]) => p), writes ? now.output[step - 1] : null);
  $("changed-text").textContent = !switched ? "Nothing is changed." : text ? `Now, by greedy search: ${tokenizer.decode(written(text))}` : "";
}

// --- the page ------------------------------------------------------------------------------------

function fill(select, count, value) {
  $(select).replaceChildren(...Array.from({ length: count }, (_, i) => make("option", { value: String(i), textContent: String(i + 1) })));
  $(select).value = String(value);
}
function slider(input, output, max, value, said) {
  Object.assign($(input), { max: String(max), value: String(value) });
  $(output).textContent = said;
}
const VIEWS = { head: ["One head", headView], steps: ["Step by step", stepsView], search: ["Search", searchView], change: ["Change it", changeView] };
function show() {
  if (document.body.dataset.ready !== "yes") return;
  ready("yes");
  VIEWS[state.view][1]();
}
function theme(dark) {
  state.dark = dark;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = dark ? "Light" : "Dark";
  show();
}

for (const [name, [title]] of Object.entries(VIEWS)) {
  if (name === "search" && !writes) continue;
  const input = make("input", { type: "radio", name: "view", value: name, checked: name === state.view });
  input.onchange = () => { state.view = name; show(); };
  $("views").append(make("label", { className: "choice" }, input, title));
}
$("kind").replaceChildren(...KINDS.map((kind) => make("option", { value: kind, textContent: NAMES[kind] })));
$("kind").onchange = (event) => { Object.assign(state, { kind: event.target.value, layer: 0, head: 0, row: 0, column: 0 }); headView(); };
for (const name of ["layer", "head"]) $(`number-${name}`).onchange = (event) => { state[name] = Number(event.target.value); headView(); };
$("run").onclick = run;
$("text").onkeydown = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } };
const go = (step) => { state.step = Math.min(Math.max(step, 1), steps()); stepsView(); };
$("back").onclick = () => go(state.step - 1);
$("next").onclick = () => go(state.step + 1);
$("step").oninput = (event) => go(Number(event.target.value));
$("step-layer").onchange = (event) => { state.stepLayer = event.target.value; stepsView(); };
const searched = () => { now.found = null; searchView(); };
const changed = () => { now.changed = null; changeView(); };
for (const id of ["beams", "alpha", "temperature", "top-p"]) $(id).oninput = searched;
$("again").onclick = () => { state.seed++; searched(); };
$("changed-step").oninput = (event) => { state.changedStep = Number(event.target.value); changeView(); };
for (const name of ["scale", "mask", "positions"]) $(`no-${name}`).onchange = (event) => { change[name] = !event.target.checked; changed(); };
$("reset").onclick = () => { change = unchanged(); buildChange(); changed(); };
$("theme").onclick = () => theme(!state.dark);

const WHAT = { "encoder-decoder": ["a translator", "A sentence to translate"], decoder: ["a language model", "A text to continue"], masked: ["an encoder", "A text; [MASK] stands for a token to predict"], classifier: ["a classifier", "A text to classify"], tagger: ["a tagger", "A sentence to tag"] }[family];
const layers = [["encoder_layers", "encoder"], ["decoder_layers", "decoder"]].filter(([name]) => config[name]).map(([name, side]) => `${config[name]} ${side} layers`).join(", ");
$("about").textContent = `This model, ${WHAT[0]}, runs in your browser: ${(data.size / 1e6).toFixed(2)} million parameters, ${layers}, ${headsOf(KINDS[0])} heads.`;
$("asks").textContent = WHAT[1];
$("precision").textContent = data.precision === "int8" ? "Matrices are rounded to int8 with a scale for each row, so that numbers differ from those of Python." : "Matrices are rounded to float16, so that numbers differ from those of Python in the third or fourth digit.";
$("text").value = data.example;
$("beams").value = String(data.search.num_beams ?? 1);
$("alpha").value = String(data.search.length_penalty ?? 0);
theme(matchMedia("(prefers-color-scheme: dark)").matches);
try { inWorker(); } catch { inThisThread(); }
if (data.example) run(); else $("state").textContent = "Type a text, and press Run.";
