// Filters, in the language of the terminal viewer: rollout/viewer/rows/filters.py says what it is.

const OP = "!=|>=|<=|!~|=|>|<|~";
const WORD = String.raw`[^\s()"=<>~!]+`;
const QUOTED = String.raw`"(?:[^"\\]|\\[^])*"`;
const TERM = new RegExp(
  String.raw`\s*(?<nots>(?:not\s+(?!${OP}))*)` +
    String.raw`(?:(?<name>${WORD})\s*(?<op>${OP})\s*(?<value>${QUOTED}|${WORD})?|(?<text>${QUOTED}|${WORD}))`,
  "y",
);
const FLAGS = { true: true, yes: true, 1: true, false: false, no: false, 0: false };
const COMPARE = {
  "=": (a, b) => a === b, ">": (a, b) => a > b, ">=": (a, b) => a >= b, "<": (a, b) => a < b, "<=": (a, b) => a <= b,
};

class FilterError extends Error {
  constructor(problem, at) { super(`${problem}, at character ${at + 1}`); }
}

// Terms that need the index alone, `cheap(row)`, and those that read the row, `reads(row, record)`; all must hold.
function parseFilter(source) {
  const found = { source: source.trim(), cheap: [], reads: [] };
  let at = 0;
  while (source.slice(at).trim()) {
    at += source.slice(at).length - source.slice(at).trimStart().length;
    TERM.lastIndex = at;
    const match = TERM.exec(source);
    if (!match) {
      const op = source.slice(at).match(new RegExp(`^(?:${OP})`));
      const problem = op ? `${op[0]} needs a field before it` : `${source[at]} is not understood here`;
      throw new FilterError(source[at] === '"' ? "the quote is not closed" : problem, at);
    }
    const { negative, test, reads } = term(match.groups, at);
    found[reads ? "reads" : "cheap"].push(negative ? (row, record) => !test(row, record) : test);
    at = TERM.lastIndex;
  }
  return found;
}

function term({ nots, name, op, value: wanted, text }, at) {
  let negative = (nots.match(/not/g) ?? []).length % 2 === 1;
  if (op) {
    if (wanted === undefined) throw new FilterError(`${op} needs a value`, at);
    if (op[0] === "!") negative = !negative;
    return { negative, ...comparison(field(name, at), op.replace("!", ""), wanted, at) };
  }
  if (text === "not") throw new FilterError("a term is missing", at);
  if (text === "or" || text === "and")
    throw new FilterError(`there is no ${text}: all terms must hold; quote it to look for the word`, at);
  const known = facts.fields.find((each) => each.name === text);
  if (known?.kind === "flag") return { negative, test: anyOf(text, (each) => each === "true") };
  const word = reading("text", matcher(unquoted(text)));
  if (!extraNames().includes(text)) return { negative, ...word };
  const flag = (row, record) => (typeof value(text, row) === "boolean" ? value(text, row) : word.test(row, record));
  return { negative, test: flag, reads: true };
}

function field(name, at) {
  const known = facts.fields.find((each) => each.name === name);
  if (known) return known;
  if (extraNames().includes(name)) return { name, kind: "extra" };
  throw new FilterError(`${name} is not a field; there are: ${facts.fields.map((each) => each.name).join(", ")}`, at);
}

function comparison({ name, kind }, op, raw, at) {
  const wanted = unquoted(raw);
  if (op === "~") {
    let pattern;
    try { pattern = new RegExp(wanted); } catch (error) { throw new FilterError(error.message, at); }
    if (kind === "read") return reading(name, pattern);
    return { test: anyOf(name, (each) => each !== null && pattern.test(String(each))) };
  }
  if (kind === "flag") {
    if (op !== "=") throw new FilterError(`${name} is true or false and has no size; use = or !=`, at);
    if (!Object.hasOwn(FLAGS, wanted.toLowerCase()))
      throw new FilterError(`${name} is true or false, and not ${wanted}`, at);
    return { test: anyOf(name, (each) => each === String(FLAGS[wanted.toLowerCase()])) };
  }
  if ((kind === "text" || kind === "read") && op !== "=")
    throw new FilterError(`${name} is a text and has no size; use = or ~`, at);
  if (kind === "read") return reading(name, matcher(wanted));
  if (raw === "none") {
    if (op !== "=") throw new FilterError("none has no size; use = or !=", at);
    return { test: (row) => value("broken", row) !== "true" && value(name, row) === null };
  }
  const size = wanted.trim() === "" ? NaN : Number(wanted);
  if (Number.isNaN(size) && (op !== "=" || kind === "number"))
    throw new FilterError(`${name} is compared with ${wanted}, which is no number`, at);
  const plain = wanted === wanted.toLowerCase();
  return { test: anyOf(name, (each) => {
    if (typeof each === "boolean" && op === "=") return each === FLAGS[wanted.toLowerCase()];
    if (typeof each === "string") return op === "=" && (plain ? each.toLowerCase() : each) === wanted;
    return typeof each === "number" && COMPARE[op](each, size);
  }) };
}

function anyOf(name, holds) {
  return (row) => {
    const found = value(name, row);
    return Array.isArray(found) ? found.some(holds) : holds(found);
  };
}

const unquoted = (text) => (text.startsWith('"') ? text.slice(1, -1).replace(/\\(["\\])/g, "$1") : text);

function matcher(text) {
  return new RegExp(text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), text === text.toLowerCase() ? "i" : "");
}

const reading = (name, pattern) =>
  ({ test: (row, record) => record !== null && texts(record, name).some((each) => pattern.test(each)), reads: true });

// The texts of a row that a field stands for.
function texts(record, name) {
  const calls = strings(objects(record.tool_calls).map((call) => [call.raw, call.text]));
  if (name === "calls") return calls;
  if (name !== "text") return strings(record[name]);
  const messages = objects(record.messages).map((message) => message.content);
  return strings([record.input, record.output, record.gts, record.error, messages, record.uid,
    record.request_id]).concat(calls);
}

function strings(each) {
  if (typeof each === "string") return each ? [each] : [];
  if (Array.isArray(each)) return each.flatMap(strings);
  return isObject(each) ? strings(Object.values(each)) : [];
}

function extraNames() {
  return rows.extraNames ??= [...new Set(rows.extras.slice(0, 1000).flatMap(Object.keys))]
    .filter((name) => !facts.fields.some((each) => each.name === name));
}

// Rows of a step (null: of all) that pass; `progress(rows found, share read)` returns false to stop.
async function pick(step, source, progress = () => true) {
  const filter = parseFilter(source);
  const found = [];
  for (let row = 0; row < rows.count; row++)
    if ((step === null || rows.steps[row] === step) && filter.cheap.every((test) => test(row))) found.push(row);
  if (!filter.reads.length) return found;
  const passed = [];
  for (let i = 0; i < found.length; i++) {
    const row = found[i];
    const record = (await recordOf(row))?.row ?? null;
    if (filter.reads.every((test) => test(row, record))) passed.push(row);
    if (i % 50 === 49 && !progress(passed, i / found.length)) return passed;
  }
  return passed;
}

// Numbers by size, before texts; rows without a value last either way; rows that are alike keep their order.
function sortedBy(list, get, descending) {
  const known = (each) => each !== null && each !== undefined && !Number.isNaN(each);
  const pairs = list.map((row) => [get(row), row]);
  const order = ([a], [b]) => {
    const numbers = (typeof b === "number") - (typeof a === "number");
    const step = numbers
      || (typeof a === "number" ? a - b : String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0);
    return descending ? -step : step;
  };
  return [...pairs.filter(([each]) => known(each)).sort(order),
    ...pairs.filter(([each]) => !known(each))].map(([, row]) => row);
}
