// The tokens of a trajectory on their text: who wrote each, how likely it was, which weights sampled it. Who wrote it
// can be told without colour: what was sampled is underlined, what was inserted is dotted and slanted, what was cut
// away by a later condensation is struck out.

const KINDS = ["prompt", "sampled", "inserted"];
const HEAT = [0.9, 0.5, 0.2, 0.05], HEAT_NAMES = ["≥0.9", "≥0.5", "≥0.2", "≥0.05", "<0.05"];
const MOST_SURPRISING = 500;
let vocabulary = null, colours = "kind";

const bytesOf = (id) => {
  vocabulary ??= new Map(facts.vocabulary.ids.map((each, i) => [each, facts.vocabulary.bytes[i]]));
  return vocabulary.get(id);
};

// The text of one id alone, for lists.
function tokenText(id) {
  const bytes = bytesOf(id);
  return bytes === undefined ? `id ${id}`
    : shownToken(new TextDecoder().decode(Uint8Array.from(bytes, (each) => each.charCodeAt(0)))) || "·";
}

const shownToken = (text) => visible(text.replaceAll("\n", "↵").replaceAll("\t", "⇥"));

// Each id's own text: of a character in several tokens the last one has all of it.
function decode(ids, from, to, texts) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  for (let i = from; i < to; i++) {
    const bytes = bytesOf(ids[i]);
    texts.push(bytes === undefined ? `‹${ids[i]}›`
      : decoder.decode(Uint8Array.from(bytes, (each) => each.charCodeAt(0)), { stream: i + 1 < to }));
  }
}

function halves(view, at, count) {
  const found = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    const bits = view.getUint16(at + 2 * i, true), exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const size = exponent === 31 ? (fraction ? NaN : Infinity) : exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024)
      : 2 ** -24 * fraction;
    found[i] = bits & 0x8000 ? -size : size;
  }
  return found;
}

// {problem}, or lists with an entry for each token, all parts of the trajectory one after another.
const unpackedTokens = remembering(4, async (row) => {
  const bytes = await bytesOfRow(row, 1);
  if (bytes === null) return { problem: "this line holds no row" };
  const { buffer } = bytes.slice(), view = new DataView(buffer), size = view.getUint32(0, true);  // a copy is aligned
  const { problem, parts, trainer } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  if (problem) return { problem };
  const count = sum(parts.map((each) => each.prompt + each.response)),
    sampled = sum(parts.map((each) => each.response));
  let at = 4 + size;
  const ids = new Uint32Array(buffer, at, count), mask = new Uint8Array(buffer, at + 4 * count, sampled);
  at += 4 * count + sampled;
  const packed = halves(view, at, sampled), gap = trainer ? halves(view, at + 2 * sampled, sampled) : null;
  const kinds = new Uint8Array(count), cut = new Uint8Array(count), texts = [], versions = [], starts = new Map();
  const logprobs = new Float32Array(count).fill(NaN), gaps = new Float32Array(count).fill(NaN);
  let token = 0, response = 0;
  parts.forEach((each, index) => {
    const begin = token, end = token + each.prompt + each.response;
    if (index < parts.length - 1) cut.fill(1, begin, end);
    starts.set(begin, parts.length > 1 ? `part ${index + 1}` : "prompt");
    for (let i = 0; i < each.response; i++) {
      const to = begin + each.prompt + i;
      kinds[to] = mask[response + i] ? 1 : 2;
      if (mask[response + i]) { logprobs[to] = packed[response + i]; if (gap) gaps[to] = gap[response + i]; }
    }
    let place = begin;
    for (const [, length, version] of each.segments) { versions.push([place, version]); place += Math.max(0, length); }
    decode(ids, begin, end, texts);
    token = end;
    response += each.response;
  });
  return { count, ids, kinds, cut, logprobs, gaps: gap ? gaps : null, versions, texts, starts };
});

const heat = (logprob) =>
  (Number.isNaN(logprob) ? null : HEAT.filter((bound) => Math.exp(Math.min(0, logprob)) < bound).length);

// Lines of [token, text]; a line break of a token is seen, and breaks the line behind it.
function tokenLines(found, width) {
  const lines = [[]];
  let used = 0;
  const begin = () => { if (lines.at(-1).length) { lines.push([]); used = 0; } };
  for (let i = 0; i < found.count; i++) {
    if (found.starts.has(i)) begin();
    const parts = (found.texts[i].replaceAll("\r\n", "\n") || "·").split("\n");
    parts.forEach((each, k) => {
      let shown = visible(each.replaceAll("\t", "    ")) + (k < parts.length - 1 ? "↵" : "");
      while (shown) {
        const piece = [...shown].slice(0, width).join("");
        if (used && used + wide(piece) > width) begin();
        lines.at(-1).push([i, piece]);
        used += wide(piece);
        shown = shown.slice(piece.length);
      }
      if (k < parts.length - 1) begin();
    });
  }
  return lines;
}

// The view of a trajectory's tokens; its cursor is a token.
class TokenView {
  constructor(found, at) {
    const first = Math.max(0, found.kinds.findIndex((kind) => kind > 0));
    Object.assign(this, { found, lines: [[]], cursor: at >= 0 && at < found.count ? at : first });
    this.status = el("p", { class: "token-status", role: "status" });
    this.legend = el("p", { class: "legend" });
    const label = "tokens; left and right move, x goes to the next unlikely one, m changes colours";
    this.list = new List({ label, height: 22, cls: "tokens", draw: (i) => this.lines[i].map((run) => this.run(run)) });
    this.list.node.addEventListener("keydown", (event) => this.key(event), true);
    this.list.node.addEventListener("click", (event) => {
      if (event.target.dataset.token !== undefined) this.put(Number(event.target.dataset.token));
    });
    this.tell();
    new ResizeObserver(() => this.lay()).observe(this.list.node);
  }

  get node() {
    const { problem } = facts.vocabulary;
    return el("div", { class: "token-view" },
      problem ? el("p", { class: "warning" }, `Ids instead of texts: ${visible(problem)}.`) : null,
      this.legend, this.status, el("div", { class: "split" }, this.list.node,
        surprising(this.found, (to) => this.put(to))));
  }

  run([token, text]) {
    const { kinds, cut, logprobs, gaps } = this.found, classes = ["t", `k${kinds[token]}`];
    if (cut[token]) classes.push("cut");
    if (token === this.cursor) classes.push("here");
    if (colours === "kind") classes.push(token % 2 ? "odd" : "even");
    else classes.push("edge", `h${colours === "p" ? heat(logprobs[token]) : gapClass(gaps[token])}`);
    return el("span", { class: classes.join(" "), "data-token": token }, text);
  }

  // Lines for the width that the list has now; the cursor's is at a third of the height.
  lay() {
    const { node } = this.list;
    if (!node.clientWidth || node.clientWidth === this.laid) return;
    this.laid = node.clientWidth;
    this.lines = tokenLines(this.found, Math.max(20, Math.floor((node.clientWidth - 24) / cellWidth(node))));
    this.list.show(this.lines.length);
    this.put(this.cursor, false);
    node.scrollTop = Math.max(0, this.list.cursor * this.list.height - this.list.space / 3);
  }

  put(token, focus = true) {
    this.cursor = Math.max(0, Math.min(token, this.found.count - 1));
    const next = this.lines.findIndex((line) => line.length && line[0][0] > this.cursor);
    this.list.cursor = (next < 0 ? this.lines.length : next) - 1;
    this.list.again();
    this.list.reveal();
    this.status.textContent = aboutToken(this.found, this.cursor);
    if (focus) this.list.node.focus({ preventScroll: true });
  }

  recolour() {
    if (!this.found.gaps && colours === "gap") colours = "p";
    colours = { kind: "p", p: this.found.gaps ? "gap" : "kind", gap: "kind" }[colours];
    this.tell();
    this.list.again();
  }

  tell() {
    if (!this.found.gaps && colours === "gap") colours = "p";
    const button = el("button", { on: { click: () => this.recolour() } }, "other colours (m)");
    this.legend.replaceChildren(...legendOf(this.found), " ", button);
  }

  // To the next token of the two unlikely classes.
  unlikely() {
    for (let k = 1; k <= this.found.count; k++) {
      const token = (this.cursor + k) % this.found.count;
      if ((heat(this.found.logprobs[token]) ?? 0) >= 3) return this.put(token);
    }
    return null;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { cursor, lines } = this, at = this.list.cursor, begin = (line) =>
      lines[Math.max(0, Math.min(lines.length - 1, line))]?.[0]?.[0] ?? cursor;
    const moves = { ArrowLeft: cursor - 1, h: cursor - 1, ArrowRight: cursor + 1, l: cursor + 1, Home: 0,
      End: this.found.count - 1, ArrowUp: begin(at - 1), ArrowDown: begin(at + 1), PageUp: begin(at - 20),
      PageDown: begin(at + 20) };
    if (Object.hasOwn(moves, event.key)) this.put(moves[event.key]);
    else if (event.key === "x") this.unlikely();
    else if (event.key === "m") this.recolour();
    else return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }
}

async function tokensOf(row, at) {
  const found = await unpackedTokens(row);
  return found.problem ? el("p", {}, `No tokens: ${visible(found.problem)}.`) : new TokenView(found, at).node;
}

const gapClass = (gap) =>
  (gap === undefined || Number.isNaN(gap) ? null
  : [0.001, 0.01, 0.1, 1].filter((bound) => Math.abs(gap) >= bound).length);

function cellWidth(node) {
  const probe = el("span", { class: "t" }, "0".repeat(100));
  node.append(probe);
  const width = probe.getBoundingClientRect().width / 100;
  probe.remove();
  return width || 8;
}

const versionAt = (found, token) => found.versions.findLast(([start]) => start <= token)?.[1] ?? "";

function aboutToken(found, token) {
  const logprob = found.logprobs[token],
    parts = [`${KINDS[found.kinds[token]]}${found.cut[token] ? ", cut" : ""}`,
    `mask ${Number(found.kinds[token] === 1)}`, `at ${token}`, `id ${found.ids[token]}`,
    `“${shownToken(found.texts[token]) || "·"}”`];
  if (!Number.isNaN(logprob)) parts.push(`logprob ${logprob.toPrecision(3)}`,
    `p ${Math.exp(Math.min(0, logprob)).toFixed(3)}`);
  const gap = found.gaps?.[token] ?? NaN;
  if (!Number.isNaN(gap))
    parts.push(`trainer ${(logprob + gap).toPrecision(3)}`, `ratio ${Math.exp(gap).toFixed(4)}`);
  const version = versionAt(found, token);
  if (version) parts.push(`weights ${onLine(version, 40)}`);
  return parts.join("  ");
}

function legendOf(found) {
  const kinds = KINDS.map((name, i) => el("span", { class: `t k${i}` }, name));
  if (found.cut.some(Boolean)) kinds.push(el("span", { class: "t k0 cut" }, "cut"));
  if (colours === "kind") return kinds.flatMap((each) => [each, " "]);
  const names = colours === "p" ? HEAT_NAMES : ["<0.001", "≥0.001", "≥0.01", "≥0.1", "≥1"];
  return [colours === "p" ? "p " : "|trainer − engine| ",
    ...names.flatMap((name, i) => [el("span", { class: `t k1 h${i}` }, name), " "])];
}

function surprising(found, put) {
  const order = [];
  for (let i = 0; i < found.count; i++) if (!Number.isNaN(found.logprobs[i])) order.push(i);
  order.sort((a, b) => found.logprobs[a] - found.logprobs[b]);
  const top = order.slice(0, MOST_SURPRISING);
  const list = new List({ label: "sampled tokens by surprise", height: 22, cls: "surprise", open: (i) => put(top[i]),
    draw: (i) => el("div", { class: "cells" }, el("span", { class: "number" }, `${i + 1}.`),
      el("span", { class: "number" }, found.logprobs[top[i]].toFixed(2)),
      el("code", {}, shownToken(found.texts[top[i]]).slice(0, 40) || "·")) });
  return el("section", { class: "by-surprise" }, el("h3", {}, "By surprise"), list.show(top.length).node);
}
