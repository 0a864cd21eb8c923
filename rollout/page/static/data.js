// Data of the page: chunks, unpacked when they are needed; the index of all rows; texts made safe to show.
// Everything that comes from a dump reaches the document as the text of a node, never as markup.

const byId = (id) => document.getElementById(id);
const policy = window.trustedTypes?.createPolicy("fairbox-parts", { createScriptURL: (url) => url });
const KEPT_PARTS = 8, KEPT_CHUNKS = 16, KEPT_BODIES = 64;
let facts;

async function unpack(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

const unpackJson = async (text) => JSON.parse(new TextDecoder().decode(await unpack(text)));

// A cache of promises that forgets the oldest.
function remembering(most, make) {
  const kept = new Map();
  return (key) => {
    const found = kept.get(key) ?? make(key);
    kept.delete(key);
    kept.set(key, found);
    Promise.resolve(found).catch(() => kept.delete(key));
    if (kept.size > most) kept.delete(kept.keys().next().value);
    return found;
  };
}

const waiting = new Map();
window.fairboxPart = (number, text) => waiting.get(number)?.(text);

const part = remembering(KEPT_PARTS, (number) => {
  const inside = byId(`part-${number}`);
  if (inside) return Promise.resolve(inside.textContent);
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    const url = `${encodeURIComponent(facts.parts)}/${number}.js`;
    waiting.set(number, (text) => { script.remove(); waiting.delete(number); resolve(text); });
    script.onerror = () => { script.remove(); waiting.delete(number); reject(new Error(`${url} can't be read`)); };
    script.src = policy ? policy.createScriptURL(url) : url;
    document.head.append(script);
  });
});

const chunk = remembering(KEPT_CHUNKS, async (place) => {
  const [number, offset, length] = place.split(" ").map(Number);
  return unpack((await part(number)).substr(offset, length));
});

// The bytes of a row's texts (0) or tokens (1), or null for a line that holds no row.
async function bytesOfRow(row, which) {
  const place = rows.places[row]?.slice(5 * which, 5 * which + 5);
  return place ? new Uint8Array(await chunk(place.slice(0, 3).join(" ")), place[3], place[4]) : null;
}

async function recordOf(row) {
  const bytes = await bytesOfRow(row, 0);
  return bytes && JSON.parse(new TextDecoder().decode(bytes));
}

// The whole row without its tokens, and how many of its characters were cut.
const body = remembering(KEPT_BODIES,
  async (row) => (await recordOf(row)) ?? { cut: 0, row: { error: value("stop_reason", row) } });

const rows = { count: 0, steps: [], columns: new Map(), extras: [], prompts: [], started: [], spans: [], phases: [],
  places: [] };

async function readIndex() {
  facts = await unpackJson(byId("facts").textContent);
  for (const each of facts.fields) if (each.kind !== "read") rows.columns.set(each.name, []);
  for (const node of document.querySelectorAll("script.index")) {
    const block = await unpackJson(node.textContent);
    for (const [name, values] of rows.columns) for (const each of block.columns[name] ?? []) values.push(each);
    for (const name of ["extras", "prompts", "started", "spans", "phases", "places"])
      for (const each of block[name]) rows[name].push(each);
    for (let i = 0; i < block.places.length; i++) rows.steps.push(block.step);
    node.remove();
  }
  rows.count = rows.steps.length;
}

function value(name, row) {
  const column = rows.columns.get(name);
  if (column) return column[row];
  return Object.hasOwn(rows.extras[row], name) ? rows.extras[row][name] : null;
}

const isNumber = (each) => typeof each === "number" && Number.isFinite(each);
const isObject = (each) => typeof each === "object" && each !== null && !Array.isArray(each);
const objects = (each) => (Array.isArray(each) ? each.filter(isObject) : []);
const sum = (values) => values.reduce((total, each) => total + each, 0);
const label = (row) => facts.steps[rows.steps[row]].label;

// Characters that a reader would not see, or that would reorder what is read, become ones that are seen.
const UNSEEN = new RegExp(String.raw`[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5` +
  String.raw`\u180b-\u180f\u200b-\u200f\u2028-\u202e` +
  String.raw`\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\ue000-\uf8ff\ud800-\udfff]` +
  String.raw`|[\u{e0000}-\u{e0fff}\u{f0000}-\u{10ffff}]`, "gu");

function visible(text) {
  return String(text).replaceAll("\r\n", "\n").replace(UNSEEN, (each) => {
    const code = each.codePointAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : `‹${code.toString(16).padStart(4, "0")}›`;
  });
}

const onLine = (text, most = 200) => visible(String(text).slice(0, most)).replace(/\s+/g, " ");

function number(each) {
  if (each === null || each === undefined) return "-";
  if (typeof each !== "number") return onLine(each);
  if (Number.isInteger(each) && Math.abs(each) < 1e15) return String(each);
  const size = Math.abs(each);
  return size >= 1e-3 && size < 1e7 ? each.toFixed(3) : each.toExponential(2);
}

// Cells of a font of fixed width.
function wide(text) {
  let cells = 0;
  for (const each of text) cells += each.codePointAt(0) >= 0x1100 && !"…‹›".includes(each) ? 2 : 1;
  return cells;
}

const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const seconds = (each) =>
  (each >= 100 ? `${each.toFixed(0)} s` : each >= 1 ? `${each.toFixed(1)} s` : `${(1000 * each).toFixed(0)} ms`);
const many = (count, one, more = `${one}s`) => `${count} ${count === 1 ? one : more}`;

// A table of lines, each a heading and its cells.
const tableOf = (cls, lines) =>
  el("table", { class: cls }, el("tbody", {}, lines.filter(Boolean).map(([head, ...cells]) =>
  el("tr", {}, el("th", { scope: "row" }, head),
    cells.map((each) => (each instanceof Node ? each : el("td", {}, each)))))));
const numberCell = (text, attributes) => el("td", { class: "number", ...attributes }, text);
const card = (title, ...content) => el("section", { class: "card" }, el("h3", {}, title), content);

// An element. Attributes are names and plain values; `on` has listeners; children are nodes or texts.
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, each] of Object.entries(attributes ?? {})) {
    if (name === "on") for (const [event, listener] of Object.entries(each)) node.addEventListener(event, listener);
    else if (each !== null && each !== undefined && each !== false) node.setAttribute(name, each === true ? "" : each);
  }
  node.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined));
  return node;
}
