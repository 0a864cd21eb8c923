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
  return bytes === undefined ? `id ${id}` : shownToken(new TextDecoder().decode(Uint8Array.from(bytes, (each) => each.charCodeAt(0)))) || "·";
}

const shownToken = (text) => visible(text.replaceAll("\n", "↵").replaceAll("\t", "⇥"));

// Each id's own text: of a character in several tokens the last one has all of it.
function decode(ids, from, to, texts) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  for (let i = from; i < to; i++) {
    const bytes = bytesOf(ids[i]);
    texts.push(bytes === undefined ? `‹${ids[i]}›` : decoder.decode(Uint8Array.from(bytes, (each) => each.charCodeAt(0)), { stream: i + 1 < to }));
  }
}

function halves(view, at, count) {
  const found = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    const bits = view.getUint16(at + 2 * i, true), exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const size = exponent === 31 ? (fraction ? NaN : Infinity) : exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
    found[i] = bits & 0x8000 ? -size : size;
  }
  return found;
}

// {problem} or {count, ids, kinds, cut, logprobs, gaps, versions, texts}, all parts of the trajectory one after another.
const unpackedTokens = remembering(4, async (row) => {
  const bytes = await bytesOfRow(row, 1);
  if (bytes === null) return { problem: "this line holds no row" };
  const { buffer } = bytes.slice(), view = new DataView(buffer), size = view.getUint32(0, true);  // a copy is aligned
  const { problem, parts, trainer } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  if (problem) return { problem };
  const count = sum(parts.map((each) => each.prompt + each.response)), sampled = sum(parts.map((each) => each.response));
  let at = 4 + size;
  const ids = new Uint32Array(buffer, at, count), mask = new Uint8Array(buffer, at + 4 * count, sampled);
  at += 4 * count + sampled;
  const packed = halves(view, at, sampled), gap = trainer ? halves(view, at + 2 * sampled, sampled) : null;
  const kinds = new Uint8Array(count), cut = new Uint8Array(count), texts = [], versions = [], starts = new Map();
  const logprobs = new Float32Array(count).fill(NaN), gaps = new Float32Array(count).fill(NaN);
  let token = 0, response = 0;
  parts.forEach((each, number_) => {
    const begin = token, end = token + each.prompt + each.response;
    if (number_ < parts.length - 1) cut.fill(1, begin, end);
    starts.set(begin, parts.length > 1 ? `part ${number_ + 1}` : "prompt");
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

const heat = (logprob) => (Number.isNaN(logprob) ? null : HEAT.filter((bound) => Math.exp(Math.min(0, logprob)) < bound).length);

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

async function tokensOf(row, at) {
  const found = await unpackedTokens(row);
  if (found.problem) return el("p", {}, `No tokens: ${visible(found.problem)}.`);
  let lines = [[]], cursor = at >= 0 && at < found.count ? at : Math.max(0, found.kinds.findIndex((kind) => kind > 0));
  const status = el("p", { class: "token-status", role: "status" }), legend = el("p", { class: "legend" });
  const list = new List({ label: "tokens; left and right move, x goes to the next unlikely one, m changes colours", height: 22, cls: "tokens", draw: (i) => lines[i].map(([token, text]) => {
    const colour = colours === "kind" ? "" : `h${colours === "p" ? heat(found.logprobs[token]) : gapClass(found.gaps?.[token])}`;
    return el("span", { class: `t k${found.kinds[token]} ${found.cut[token] ? "cut" : ""} ${token === cursor ? "here" : ""} ${colours === "kind" ? (token % 2 ? "odd" : "") : "edge"} ${colour}`, "data-token": token }, text);
  }) });
  const lineOf = (token) => { let [a, b] = [0, lines.length - 1]; while (a < b) { const middle = (a + b + 1) >> 1; if (lines[middle].length && lines[middle][0][0] <= token) a = middle; else b = middle - 1; } return a; };
  const put = (token, focus = true) => {
    cursor = Math.max(0, Math.min(token, found.count - 1));
    list.cursor = lineOf(cursor);
    list.again();
    list.reveal();
    status.textContent = aboutToken(found, cursor);
    if (focus) list.node.focus({ preventScroll: true });
  };
  const third = () => { list.node.scrollTop = Math.max(0, list.cursor * list.height - list.space / 3); };
  const lay = () => { const width = Math.max(20, Math.floor((list.node.clientWidth - 24) / cellWidth(list.node))); lines = tokenLines(found, width); list.show(lines.length); put(cursor, false); third(); };
  const recolour = () => { colours = { kind: "p", p: found.gaps ? "gap" : "kind", gap: "kind" }[colours]; tell(); list.again(); };
  const tell = () => legend.replaceChildren(...legendOf(found), " ", el("button", { on: { click: recolour } }, "other colours (m)"));
  const unlikely = () => { for (let k = 1; k <= found.count; k++) { const token = (cursor + k) % found.count; if ((heat(found.logprobs[token]) ?? 0) >= 3) return put(token); } return null; };
  list.node.addEventListener("keydown", (event) => {
    const line = list.cursor, moves = { ArrowLeft: cursor - 1, h: cursor - 1, ArrowRight: cursor + 1, l: cursor + 1, ArrowUp: lines[line - 1]?.[0][0], ArrowDown: lines[line + 1]?.[0][0], PageDown: lines[Math.min(lines.length - 1, line + 20)]?.[0]?.[0], PageUp: lines[Math.max(0, line - 20)]?.[0]?.[0], Home: 0, End: found.count - 1 };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) { if (moves[event.key] !== undefined) put(moves[event.key]); } else if (event.key === "x") unlikely(); else if (event.key === "m") recolour(); else return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
  list.node.addEventListener("click", (event) => { const token = event.target.dataset.token; if (token !== undefined) put(Number(token)); });
  tell();
  requestAnimationFrame(lay);
  new ResizeObserver(() => { if (list.node.clientWidth !== list.laid) { list.laid = list.node.clientWidth; lay(); } }).observe(list.node);
  return el("div", { class: "token-view" }, facts.vocabulary.problem ? el("p", { class: "warning" }, `Ids instead of texts: ${visible(facts.vocabulary.problem)}.`) : null,
    legend, status, el("div", { class: "split" }, list.node, surprising(found, put)));
}

const gapClass = (gap) => (gap === undefined || Number.isNaN(gap) ? null : [0.001, 0.01, 0.1, 1].filter((bound) => Math.abs(gap) >= bound).length);

function cellWidth(node) {
  const probe = el("span", { class: "t" }, "0".repeat(100));
  node.append(probe);
  const width = probe.getBoundingClientRect().width / 100;
  probe.remove();
  return width || 8;
}

const versionAt = (found, token) => found.versions.findLast(([start]) => start <= token)?.[1] ?? "";

function aboutToken(found, token) {
  const logprob = found.logprobs[token], parts = [`${KINDS[found.kinds[token]]}${found.cut[token] ? ", cut" : ""}`, `mask ${Number(found.kinds[token] === 1)}`, `at ${token}`, `id ${found.ids[token]}`, `“${shownToken(found.texts[token]) || "·"}”`];
  if (!Number.isNaN(logprob)) parts.push(`logprob ${logprob.toPrecision(3)}`, `p ${Math.exp(Math.min(0, logprob)).toFixed(3)}`);
  if (found.gaps && !Number.isNaN(found.gaps[token])) parts.push(`trainer ${(logprob + found.gaps[token]).toPrecision(3)}`, `ratio ${Math.exp(found.gaps[token]).toFixed(4)}`);
  const version = versionAt(found, token);
  if (version) parts.push(`weights ${onLine(version, 40)}`);
  return parts.join("  ");
}

function legendOf(found) {
  const kinds = KINDS.map((name, i) => el("span", { class: `t k${i}` }, name));
  if (found.cut.some(Boolean)) kinds.push(el("span", { class: "t k0 cut" }, "cut"));
  if (colours === "kind") return kinds.flatMap((each) => [each, " "]);
  const names = colours === "p" ? HEAT_NAMES : ["<0.001", "≥0.001", "≥0.01", "≥0.1", "≥1"];
  return [colours === "p" ? "p " : "|trainer − engine| ", ...names.flatMap((name, i) => [el("span", { class: `t k1 h${i}` }, name), " "])];
}

function surprising(found, put) {
  const order = [];
  for (let i = 0; i < found.count; i++) if (!Number.isNaN(found.logprobs[i])) order.push(i);
  order.sort((a, b) => found.logprobs[a] - found.logprobs[b]);
  const top = order.slice(0, MOST_SURPRISING);
  const list = new List({ label: "sampled tokens by surprise", height: 22, cls: "surprise", open: (i) => put(top[i]),
    draw: (i) => el("div", { class: "cells" }, el("span", { class: "number" }, `${i + 1}.`), el("span", { class: "number" }, found.logprobs[top[i]].toFixed(2)), el("code", {}, shownToken(found.texts[top[i]]).slice(0, 40) || "·")) });
  return el("section", { class: "by-surprise" }, el("h3", {}, "By surprise"), list.show(top.length).node);
}
