// A trajectory as people read it: its facts, the prompt, turns, and under each turn its calls.

const SHOWN_CHARS = 20000, MORE_CHARS = 200000, HIGHLIGHTED_CHARS = 20000;
const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;
const KEYWORDS = `and as assert async await break case class const continue def del do done elif else esac except export
  fi finally for from function global if import in is lambda let local match not or pass raise return then try var
  while with yield None True False null true false`.split(/\s+/).join("|");
const CODE = new RegExp([String.raw`(?<comment>(?:#|//)[^\n]*)`,
  String.raw`(?<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')`,
  String.raw`(?<word>\b(?:${KEYWORDS})\b)`, String.raw`(?<digits>\b\d[\d_.]*\b)`].join("|"), "g");

// A text in full or its first characters, and a button for more.
function textBlock(text, most = SHOWN_CHARS, fill = (node, shown) => node.append(visible(shown)), cls = "text") {
  const node = el("pre", { class: cls, dir: "auto" });
  let end = Math.min(most, text.length);
  const whole = el("div", {}, node);
  if (!text) node.append(el("span", { class: "dim" }, "(empty)"));
  fill(node, text.slice(0, end));
  if (end === text.length) return whole;
  const more = el("button", { on: { click: () => {
    const next = Math.min(text.length, end + MORE_CHARS);
    node.append(visible(text.slice(end, next)));
    end = next;
    tell();
  } } });
  const tell = () =>
    (end < text.length
    ? (more.textContent = `${text.length - end} more characters: show ${Math.min(MORE_CHARS, text.length - end)}`)
    : more.remove());
  whole.append(more);
  tell();
  return whole;
}

function highlighted(node, text) {
  const code = visible(text);
  let at = 0;
  for (const match of code.slice(0, HIGHLIGHTED_CHARS).matchAll(CODE)) {
    node.append(code.slice(at, match.index),
      el("span", { class: Object.keys(match.groups).find((name) => match.groups[name] !== undefined) }, match[0]));
    at = match.index + match[0].length;
  }
  node.append(code.slice(at));
}

const codeBlock = (text) => textBlock(text, SHOWN_CHARS, highlighted, "code");

function contentText(content) {
  if (typeof content === "string") return content;
  if (content === null || content === undefined) return "";
  const parts = objects(content);
  if (parts.length
    && parts.every((each) => typeof each.text === "string"
    || pictureOf(each))) return parts.map((each) => each.text ?? "").join("\n");
  return JSON.stringify(content, null, 2);
}

function pictureOf(each) {
  const url = each?.image_url?.url ?? each?.image_url ?? each?.image;
  return typeof url === "string" && PICTURE.test(url) ? url : null;
}

const pictures = (content) => objects(content).map(pictureOf).filter(Boolean)
  .map((url) => { const node = el("img", { alt: "picture in the conversation" }); node.src = url; return node; });

// What a turn thought, and what it said: rollout/rewards/reasoning.py has the same rule.
function thought(text) {
  const close = "</think>", at = text.indexOf(close);
  if (at < 0) return [null, text];
  const head = text.slice(0, at), open = head.lastIndexOf("<think>");
  const said = text.slice(text.lastIndexOf(close) + close.length).replace(/^\n+/, "");
  return [(open < 0 ? head : head.slice(open + 7)).replace(/^\n+|\n+$/g, ""), said];
}

function promptLength(messages, turns) {
  const own = messages.map((each, i) => (each.role === "assistant" ? i : -1)).filter((i) => i >= 0);
  if (Number.isInteger(turns) && turns >= 0 && turns <= own.length) return turns ? own.at(-turns) : messages.length;
  return own[0] ?? messages.length;
}

const block = (cls, title, ...content) => el("article", { class: `block ${cls}` }, el("h3", {}, title), content);

function conversation(record, row) {
  const messages = objects(record.messages), calls = objects(record.tool_calls);
  if (!messages.length)
    return ["input",
      "output"].filter((key) => typeof record[key] === "string").map((key) =>
      block(key === "input" ? "prompt" : "turn", key, textBlock(record[key])));
  const found = [], before = [], prompt = promptLength(messages, record.turns), shown = new Set();
  let turn = 0;
  messages.forEach((message, i) => {
    const role = onLine(message.role ?? "message", 40), text = contentText(message.content);
    const content = [textBlock(text), pictures(message.content)].flat();
    if (i < prompt) {
      const last = i === prompt - 1;
      (last ? found : before).push(el("article", { class: "block prompt" },
        el("details", { open: last },
        el("summary", {}, `prompt: ${role}`, el("span", { class: "dim" }, last ? "" : ` ${onLine(text, 90)}`)),
        content)));
    } else if (message.role === "assistant") {
      turn += 1;
      const of = calls.filter((call) => call.turn === turn);
      of.forEach((call) => shown.add(call));
      found.push(turnBlock(turn, text, of, record),
        ...of.map((call, k) => callBlock(call, k + 1, calls.indexOf(call), record)));
    } else if (message.role !== "tool" || !calls.length) found.push(block("call", role, content));
  });
  const rest = calls.filter((call) => !shown.has(call));
  // A prompt of worked examples is one fold, so that the question and the turns are seen first.
  if (before.length > 3) found.unshift(el("details", {},
    el("summary", {}, `prompt: ${before.length} messages before the last`), el("div", { class: "messages" }, before)));
  else found.unshift(...before);
  return found.concat(rest.map((call, k) => callBlock(call, k + 1, calls.indexOf(call), record)));
}

function turnBlock(turn, text, calls, record) {
  const [thinking, said] = thought(text);
  let rest = said;
  // A call stands below its turn as code; the text names its place.
  calls.forEach((call, k) => {
    if (typeof call.raw === "string" && call.raw.length > 2) rest = rest.replace(call.raw, () => `⟨call ${k + 1}⟩`);
  });
  const times = objects(record.turn_records)[turn - 1];
  const facts = [isNumber(times?.sampled_s) && isNumber(times?.began_s)
    ? `sampled in ${seconds(times.sampled_s - times.began_s)}` : "",
    times?.finish === "length" ? "✂ cut: the turn reached its limit of tokens"
      : times?.finish === "abort" ? "✂ aborted"
      : ""].filter(Boolean).join(", ");
  return block("turn", [`turn ${turn} `, el("span", { class: "dim" }, facts)],
    thinking === null ? null
      : el("details", { class: "thinking" }, el("summary", {}, `thinking, ${many(thinking.length, "character")}`),
      textBlock(thinking)),
    rest.trim() || !calls.length ? textBlock(rest) : null);
}

function callBlock(call, at, position, record) {
  const failed = call.outcome !== "ok";
  const facts = [["waited", "wait_s"],
    ["ran", "run_s"]].filter(([, key]) => isNumber(call[key])).map(([name, key]) => `${name} ${seconds(call[key])}`);
  if (isNumber(call.reward)) facts.push(`reward ${number(call.reward)}`);
  if (call.truncated) facts.push(`✂ answer cut from ${call.total_bytes} bytes`);
  for (const [type, bytes] of Object.entries(isObject(call.unshown) ? call.unshown
    : {})) facts.push(`displayed ${onLine(type, 40)}, ${onLine(bytes, 12)} bytes, which the dump does not hold`);
  if (call.outcome === "infra") facts.push("cause INFRA: the trajectory is masked");
  if (call.outcome === "time_limit"
    || call.outcome === "resource_limit") facts.push("ended by a limit of the tool; the answer names it");
  const title = [`call ${at}: ${onLine(call.name || "not parsed", 60)} `,
    el("span", { class: failed ? "bad" : "good" },
      `${failed ? "✗" : "✓"} ${onLine(call.outcome ?? "no outcome", 40)}`),
    el("span", { class: "dim" }, ` ${facts.join(", ")}`)];
  const node = block(failed ? "call failed" : "call", title, asked(call), el("h4", {}, "answer"),
    textBlock(contentText(call.text)), pictures(call.text), again(call));
  node.id = `call-${position}`;
  return node;
}

function asked(call) {
  if (!isObject(call.arguments)) return codeBlock(String(call.raw ?? ""));
  const pairs = Object.entries(call.arguments);
  return pairs.map(([name, each]) =>
    [pairs.length > 1 || typeof each !== "string" ? el("h4", {}, onLine(name, 60)) : null,
    codeBlock(typeof each === "string" ? each : JSON.stringify(each, null, 2))]).flat();
}

// A `fairbox exec` line that runs the call's program. What a shell or a terminal would obey is escaped.
function execLine(call) {
  const given = isObject(call.arguments) ? call.arguments : {};
  const [code, language] = typeof given.code === "string" ? [given.code, given.language ?? "python"]
    : typeof given.command === "string" ? [given.command, "bash"] : [];
  if (code === undefined || code.includes("\0") || !/^[A-Za-z0-9_+#.-]+$/.test(language)) return null;
  return new TextEncoder().encode(code).length > 100000 ? null
    : `fairbox exec --language ${language} --code=${quoted(code)}`;
}

function quoted(code) {
  if (visible(code) === code && !code.includes("\r")) return `'${code.replaceAll("'", `'\\''`)}'`;
  const escaped = code.replace(/[\\']/g, "\\$&").replaceAll("\n", "\\n").replace(/[\0-\x1f\x7f]/g,
    (each) => `\\x${each.charCodeAt(0).toString(16).padStart(2, "0")}`)
    .replace(UNSEEN,
      (each) => (each.codePointAt(0) > 0xffff ? `\\U${each.codePointAt(0).toString(16).padStart(8, "0")}`
      : `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`));
  return `$'${escaped}'`;
}

function again(call) {
  const line = execLine(call);
  if (line === null) return null;
  const done = el("span", { role: "status" });
  const copy = el("button", { on: { click: async () => {
    try { await navigator.clipboard.writeText(line); done.textContent = " copied";
      } catch { getSelection().selectAllChildren(code); done.textContent = " selected: copy it with Ctrl-C"; }
  } } }, "copy");
  const code = el("pre", { class: "exec" }, line);
  return el("details", {}, el("summary", {}, "run it again"), code, copy, done,
    el("p", { class: "dim" },
      "It runs alone, with the executor's own limits: variables, files and the workspace of the trajectory are not " +
        "there. `fairbox up` starts an executor, or add --up."));
}

const FACTS = ["score", "reward_parts", "turn_rewards", "tool_rewards", "stop_reason", "cause", "state", "masked",
  "error", "gts", "turns", "attempts", "timings"];
const ORIGIN = ["uid", "request_id", "index", "step", "data_source", "where", "model", "sampling", "parent_id",
  "branch_point", "metrics"];

function factTable(record, names) {
  const shown = (each) =>
    (isObject(each) ? Object.entries(each).map(([name, one]) => `${onLine(name, 60)} ${shown(one)}`).join("   ")
    : Array.isArray(each) ? each.slice(0, 50).map(shown).join(" ") : number(each));
  const empty = (each) => each === null || each === undefined || each === ""
    || (typeof each === "object" && !Object.keys(each).length);
  const text = (each) =>
    (each === null ? "none" : typeof each === "string" ? visible(each.slice(0, 2000)) : shown(each));
  const known = names.filter((name) => !empty(record[name]) || (name === "score" && name in record));
  return tableOf("facts", known.map((name) => [name.replaceAll("_", " "), text(record[name])]));
}

async function messagesOf(row) {
  const { cut, row: record } = await body(row);
  const others = Object.fromEntries(Object.entries(record).filter(([name]) => !FACTS.includes(name)
    && !ORIGIN.includes(name)
    && !["input", "output", "messages", "tool_calls", "turn_records", "started_at"].includes(name)));
  return el("div", { class: "messages" },
    cut ? el("p", { class: "warning" },
      `The line is long: ${cut} characters of its texts are left out here. The dump has them.`) : null,
    el("section", { class: "card" }, factTable(record, FACTS),
      el("details", {}, el("summary", {}, "origin"), factTable(record, ORIGIN))),
    conversation(record, row),
    Object.keys(others).length ? block("other", "other fields", textBlock(JSON.stringify(others, null, 2), 4000))
      : null);
}

async function rowView(picked, state) {
  const row = Number(state.get("row"));
  if (!(row >= 0 && row < rows.count)) return el("p", {}, "There is no such row.");
  const tokens = state.get("tab") === "tokens";
  const tab = (name, text, here) =>
    el("a", { href: address({ tab: name, at: null, call: null }), "aria-current": here ? "page" : null, class: "tab" },
    text);
  const others = groupsOf(picked.includes(row) ? [row] : []).length
    ? el("a", { href: address({ view: "group", tab: null }), class: "tab" }, "its group") : null;
  const step = (by, text) => el("button", { on: { click: () => neighbour(by) }, title: by < 0 ? "p" : "n" }, text);
  const head = el("div", { class: "tabs" }, el("h2", {}, `step ${label(row)}, line ${value("line", row)} `),
    tab(null, "messages", !tokens), tab("tokens", "tokens (t)", tokens), others, step(-1, "← previous"),
    step(1, "next →"));
  const node = el("div", { class: tokens ? "fill" : "" }, head, tokens
    ? await tokensOf(row, Number(state.get("at") ?? -1)) : await messagesOf(row));
  const call = state.get("call");
  if (call !== null) requestAnimationFrame(() => node.querySelector(`[id="call-${Number(call)}"]`)?.scrollIntoView());
  return node;
}

async function pairView(picked, state) {
  const both = [Number(state.get("row")), Number(state.get("then"))].filter((row) => row >= 0 && row < rows.count);
  return el("div", { class: "pair" },
    await Promise.all(both.map(async (row) =>
    el("section", {},
    el("h2", {}, el("a", { href: address({ view: "row", row, then: null }) },
    `step ${label(row)}, line ${value("line", row)}`)), await messagesOf(row)))));
}
