// The run as a whole: figures, timeline, groups, findings, two steps side by side. Each view is a function of the state
// that the address has, and returns its node.

const figure = (name, text, exact, hint) => el("div", { class: "figure", title: hint },
  el("b", { "data-figure": name, "data-exact": JSON.stringify(exact ?? null) }, text),
    el("span", {}, name.replaceAll("_", " ")));

function runView() {
  const run = facts.figures, summary = facts.summary;
  const each = run.finished || 1, masked = run.masked / each;
  const top = el("div", { class: "figures" },
    figure("score_mean", number(run.score_mean), run.score_mean, "mean over the scored trajectories"),
    figure("finished", String(run.finished), run.finished), figure("scored", String(run.scored), run.scored),
    figure("masked", `${run.masked} (${percent(masked)})`, run.masked, "without a score, in no mean"),
    figure("retried", String(run.retried), run.retried),
    figure("turns", `${run.turns} (${number(run.turns / each)} each)`, run.turns),
    run.broken ? figure("broken", many(run.broken, "line"), run.broken, "lines that hold no row") : null,
    summary && facts.steps.length === 1 ? figure("planned", String(summary.planned), summary.planned) : null,
    summary && isNumber(summary.wall_s) && facts.steps.length === 1
      ? figure("wall_s", seconds(summary.wall_s), summary.wall_s) : null);
  const plain = (counts) => Object.entries(counts);
  const cards = [
    partsCard(run.reward_parts),
    shares("Stopped by", plain(run.stops)), shares("Causes", plain(run.causes)),
      shares("Tool calls by outcome", plain(run.tool_calls)),
    shares("Tokens", plain(run.tokens)),
    shares("Time by phase, all trajectories", facts.phases.map((name) => [name, run.phase_seconds[name]]), seconds,
      (name) => PHASE_HELP[name], 0),
    maskedCard(run),
  ];
  return el("div", { class: "run" }, top, curvesBySteps(), trainingCurves(), el("h2", {}, "Sums of the run"),
    el("div", { class: "cards" }, cards, stacksBySteps()));
}

const PHASE_HELP = { engine_queue: "waiting for the engine", engine: "generating",
  tool_wait: "waiting for a lease and a slot", tool_run: "in programs", score: "scoring" };

function partsCard(parts) {
  const lines = Object.entries(parts).map(([name, mean]) =>
    [onLine(name, 60), numberCell(number(mean), { "data-part": name, "data-exact": JSON.stringify(mean) })]);
  return lines.length ? card("Parts of the reward, means", tableOf("shares", lines)) : null;
}

function maskedCard(run) {
  if (!run.masked) return null;
  const count = (passes) => sum(run.masked_by.filter(passes).map((each) => each.rows));
  const line = (title, found, of) =>
    [title, numberCell(`${found} of ${of}`), numberCell(of ? percent(found / of) : "-")];
  const causes = [...new Set(run.masked_by.map((each) => each.cause))];
  return card("Masked", tableOf("shares", [
    line("that called a tool", count((each) => each.called), run.calling),
    line("that called none", count((each) => !each.called), run.silent),
    ...causes.map((cause) => line(`cause ${onLine(cause, 30)}`, count((each) => each.cause === cause), run.finished)),
  ]));
}

function curvesBySteps() {
  const steps = facts.steps.map((each) => each.figures), labels = facts.steps.map((each) => each.label);
  if (steps.length < 2) return null;
  const x = labels.map((each, i) => (/^\d+$/.test(each) ? Number(each) : i));
  const points = (get) => steps.map((each, i) => [x[i], get(each)]);
  const parts = [...new Set(steps.flatMap((each) => Object.keys(each.reward_parts)))].slice(0, 24);
  const each = (count) => points((step) => count(step) / (step.finished || 1));
  return el("section", {}, el("h2", {}, `${steps.length} steps`), el("div", { class: "curves" },
    curve("score", points((step) => step.score_mean)), curve("masked share", each((step) => step.masked)),
    curve("turns each", each((step) => step.turns)), curve("sampled tokens each", each((step) => step.tokens.sampled)),
    curve("tool calls each", each((step) => sum(Object.values(step.tool_calls)))),
    parts.map((name) => curve(name, points((step) => step.reward_parts[name] ?? null)))));
}

function stacksBySteps() {
  const steps = facts.steps.map((each) => each.figures), labels = facts.steps.map((each) => each.label);
  const stacks = [["Stop reasons", "stops"], ["Causes", "causes"],
    ["Outcomes of calls", "tool_calls"]].map(([title, key]) => {
    const names = Object.keys(facts.figures[key]);
    return stack(title, labels, names, steps.map((each) => names.map((name) => each[key][name] ?? 0)));
  });
  const times = steps.map((each) => facts.phases.map((name) => each.phase_seconds[name]));
  return [...stacks, stack("Seconds of phases", labels, facts.phases, times, false, 0)];
}

const KNOWN_CURVES = ["reward", "eval/reward", "policy_loss", "kl_loss", "approx_kl", "entropy", "clipped",
  "async/staleness_mean", "async/staleness_max", "grad_norm", "logprob_difference", "logprob_difference_max", "lr"];

function trainingCurves() {
  if (!facts.training.length) return null;
  const names = [...new Set(facts.training.flatMap(Object.keys))].filter((name) => name !== "step");
  const draw = (list) =>
    list.map((name) => curve(name, facts.training.map((each, i) => [isNumber(each.step) ? each.step : i, each[name]])));
  const others = names.filter((name) => !KNOWN_CURVES.includes(name)).sort().slice(0, 100);
  const more = el("div", { class: "curves" });
  return el("section", {}, el("h2", {}, "Training"),
    el("div", { class: "curves" }, draw(KNOWN_CURVES.filter((name) => names.includes(name)))),
    el("details", { on: { toggle: () => more.childElementCount || more.append(...draw(others).filter(Boolean)) } },
      el("summary", {}, `${others.length} more curves`), more));
}

// Stretches of a row in the timeline: [phase, from, to] in seconds from its start. A turn's queue, and the wait of its
// calls, are shares of the whole trajectory's: a dump has no more.
function stretches(row) {
  const [queue = 0, engine = 0, wait = 0, ran = 0, score = 0] = rows.phases[row];
  const found = [];
  let end = 0;
  const put = (phase, from, to) => { if (to > from) found.push([phase, from, to]); end = Math.max(end, to); };
  const split = (first, second, share, from, to) => {
    const middle = from + (to - from) * share;
    put(first, from, middle);
    put(second, middle, to);
  };
  for (const [began, sampled, answered] of rows.spans[row]) {
    split(0, 1, queue / (queue + engine || 1), began, sampled);
    if (answered > sampled) split(2, 3, wait / (wait + ran || 1), sampled, answered);
  }
  if (!rows.spans[row].length) [queue, engine, wait, ran].forEach((each, phase) => put(phase, end, end + each));
  end = Math.max(end, value("total_s", row) ?? 0);
  put(4, end, end + score);
  return found;
}

function endOf(row) {
  const turns = rows.spans[row], [queue = 0, engine = 0, wait = 0, ran = 0, score = 0] = rows.phases[row];
  const played = turns.length ? Math.max(turns.at(-1)[1], turns.at(-1)[2]) : queue + engine + wait + ran;
  return Math.max(played, value("total_s", row) ?? 0) + score;
}

function timeView(picked, state) {
  const known = picked.map((row) => ({ row, start: rows.started[row], end: endOf(row) })).filter((each) =>
    each.end > 0);
  if (!known.length) return el("p", {}, "These rows have no times.");
  // Starts are wall clock: of several steps each begins at its own first row.
  const first = new Map();
  for (const { row, start } of known) if (start !== null) first.set(rows.steps[row],
    Math.min(first.get(rows.steps[row]) ?? Infinity, start));
  for (const each of known) each.from = each.start === null ? 0 : each.start - first.get(rows.steps[each.row]);
  const last = known.reduce((most, each) => Math.max(most, each.from + each.end), 0);
  const byStart = state.get("sort") === "start";
  known.sort((a, b) => (byStart ? a.from - b.from : b.from + b.end - a.from - a.end));
  const draw = (i) => {
    const { row, from, end } = known[i];
    const picture = svg("svg", { viewBox: `0 0 1000 10`, preserveAspectRatio: "none", "aria-hidden": "true" });
    const paths = facts.phases.map(() => "");
    for (const [phase, a, b] of stretches(row)) {
      const [y, height] = [[3, 4], [0, 10], [4, 2], [1, 8], [3, 4]][phase];
      const x = ((1000 * (from + a)) / last).toFixed(1), width = Math.max(0.7, (1000 * (b - a)) / last).toFixed(1);
      paths[phase] += `M${x} ${y}h${width}v${height}H${x}z`;
    }
    paths.forEach((d, phase) => d && picture.append(svg("path", { d, class: `c${phase}` })));
    return el("div", { class: "cells" }, el("span", {}, `${label(row)}:${value("line", row)}`),
      el("span", { class: "number" }, number(value("score", row))),
      el("span", { class: "number" }, seconds(end)), picture,
        el("span", { class: "dim" }, onLine(value("stop_reason", row) ?? "", 20)));
  };
  const list = new List({ label: "timeline", height: 20, draw, cls: "time",
    open: (i) => openRow(known[i].row, known.map((each) => each.row)) });
  const keys = facts.phases.map((name, i) =>
    el("span", {}, el("i", { class: `key c${i}` }), `${name.replaceAll("_", " ")} `));
  const order = el("a", { href: address({ sort: byStart ? null : "start" }) }, byStart ? "last to end first"
    : "first to start first");
  return el("div", { class: "fill" },
    el("p", { class: "legend" }, keys, `0 … ${seconds(last)}, ${byStart ? "by start" : "last to end first"}; `,
      order),
    running(known, last), list.show(known.length).node);
}

// How many trajectories are in each phase at a time: a long tail is a straggler.
function running(known, last) {
  const bins = 280, counts = facts.phases.map(() => new Float64Array(bins + 1));
  for (const { from, row } of known)
    for (const [phase, a, b] of stretches(row)) {
      const i = Math.min(bins - 1, Math.floor((bins * (from + a)) / last));
      counts[phase][i] += 1;
      counts[phase][Math.max(i + 1, Math.min(bins, Math.ceil((bins * (from + b)) / last)))] -= 1;
    }
  for (const each of counts) for (let i = 1; i < bins; i++) each[i] += each[i - 1];
  const most = Math.max(1, ...Array.from({ length: bins }, (_, i) => sum(counts.map((each) => each[i]))));
  const picture = svg("svg",
    { viewBox: `0 0 ${bins} 60`, preserveAspectRatio: "none", class: "running", role: "img",
    "aria-label": `trajectories in each phase over ${seconds(last)}` });
  const base = new Float64Array(bins);
  counts.forEach((each, phase) => {
    const upper = [], lower = [];
    for (let i = 0; i < bins; i++) {
      const y = (n) => (60 - (60 * n) / most).toFixed(1);
      lower.unshift(`${i + 1},${y(base[i])}`, `${i},${y(base[i])}`);
      base[i] += each[i];
      upper.push(`${i},${y(base[i])}`, `${i + 1},${y(base[i])}`);
    }
    picture.append(svg("polygon", { points: [...upper, ...lower].join(" "), class: `c${phase}` }));
  });
  return picture;
}

// Groups as the terminal viewer and GRPO have them: rows of a step that share a uid, or a prompt if none share one.
function groupsOf(picked) {
  const bySteps = Map.groupBy(picked.filter((row) => rows.places[row]), (row) => rows.steps[row]);
  return [...bySteps.values()].flatMap((members) => {
    const uids = members.map((row) => value("uid", row)).filter(Boolean);
    const byUid = new Set(uids).size < uids.length
      || new Set(members.map((row) => rows.prompts[row])).size === members.length;
    const key = (row) =>
      (byUid ? value("uid", row) : rows.prompts[row] >= 0 ? rows.prompts[row] : null) ?? `line ${value("line", row)}`;
    return [...Map.groupBy(members, key).values()].map(group);
  });
}

function group(members) {
  const scores = members.filter((row) => value("masked", row) !== "true").map((row) =>
    value("score", row)).filter(isNumber);
  const mean = scores.length ? sum(scores) / scores.length : null;
  const std = scores.length > 1 ? Math.sqrt(sum(scores.map((each) => (each - mean) ** 2)) / (scores.length - 1)) : null;
  const advantage = (row) =>
    (std === null || value("masked", row) === "true" || !isNumber(value("score", row)) ? null
    : (value("score", row) - mean) / (std + 1e-6));
  const signal = std === null ? "too few scores" : std < 1e-9 ? "none" : "yes";
  return { members, scores, mean, std, advantage, signal };
}

const groupLabel = ({ members }) => onLine(value("uid", members[0]) ?? `line ${value("line", members[0])}`, 40);

function groupsView(picked, state) {
  let groups = groupsOf(picked);
  const columns = [
    ["step", 8, (g) => label(g.members[0])], ["group", 28, groupLabel], ["rows", 6, (g) => g.members.length],
      ["scored", 7, (g) => g.scores.length],
    ["mean", 9, (g) => g.mean], ["std", 9, (g) => g.std],
      ["best", 9, (g) => (g.scores.length ? Math.max(...g.scores) : null)],
    ["worst", 9, (g) => (g.scores.length ? Math.min(...g.scores) : null)], ["signal", 16, (g) => g.signal],
  ].map(([title, width, get]) =>
    ({ key: title, title, width, get, number: !["step", "group", "signal"].includes(title),
    text: (i) => number(get(groups[i])) }));
  const sort = state.get("sort") ?? "";
  const by = columns.find((each) => each.key === sort.replace(/^-/, ""));
  if (by) groups = sortedBy(groups, by.get, sort[0] === "-");
  const list = table({ label: "groups", columns, sort, sorted: (key) => go({ sort: nextSort(sort, key) }),
    open: (i) => go({ view: "group", row: groups[i].members[0], sort: null }) });
  const flat = groups.filter((each) => each.signal === "none").length;
  return el("div", { class: "fill" },
    el("p", { class: "legend" },
    `${many(groups.length, "group")}, of which ${flat} without signal: all scores are the same`),
    list.show(groups.length).node);
}

async function groupView(picked, state) {
  const row = Number(state.get("row"));
  const step = Array.from({ length: rows.count }, (_, i) => i).filter((each) => rows.steps[each] === rows.steps[row]);
  const found = groupsOf(step).find((each) => each.members.includes(row));
  if (!found) return el("p", {}, "There is no such group.");
  const shown = found.members.slice(0, 64);
  const cards = await Promise.all(shown.map(async (each) => {
    const { row: record } = await body(each);
    const own = objects(record.messages).filter((message) => message.role === "assistant").at(-1);
    const calls = objects(record.tool_calls).map((call) => onLine(call.outcome ?? "", 20)).join(" ");
    const lines = [["score", value("score", each)], ["advantage", found.advantage(each)],
      ["stopped by", value("stop_reason", each)], ["turns", value("turns", each)],
      ["tokens", value("response_tokens", each)], ["calls", calls || "none"]];
    const said = own ? thought(contentText(own.content))[1] : contentText(record.output ?? record.error);
    return el("article", { class: "member card" },
      el("h3", {}, el("a", { href: address({ view: "row", row: each }) }, `line ${value("line", each)}`)),
      tableOf("shares", lines.map(([name, what]) => [name, numberCell(number(what), { "data-of": name })])),
      textBlock(said, 3000));
  }));
  return el("div", {}, el("h2", {}, `Group ${groupLabel(found)}, step ${label(row)}`),
    el("p", { class: "legend" },
      `mean ${number(found.mean)}, standard deviation ${number(found.std)}, signal: ${found.signal}` +
      (found.members.length > shown.length ? `; the first ${shown.length} of ${found.members.length} rows` : "")),
    el("div", { class: "members" }, cards));
}

function findView() {
  const { tokens, gaps, slow, failures, masked, rewards, truncated } = facts.findings;
  const where = (row, more) =>
    el("a", { href: address({ view: "row", row, ...more }) }, `step ${label(row)}, line ${value("line", row)}`);
  const lines = (heads, list) => (list.length ? el("table", { class: "plain" },
    el("thead", {}, el("tr", {}, heads.map((each) => el("th", { scope: "col" }, each)))),
    el("tbody", {}, list.map((cells) => el("tr", {}, cells.map((each) => el("td", {}, each))))))
    : el("p", { class: "dim" }, "none"));
  const flat = groupsOf(Array.from({ length: rows.count }, (_, i) => i)).filter((each) => each.signal === "none");
  const tool = (each) => onLine(each.name, 40) || "not parsed";
  const some = (list) => list.slice(0, 3).flatMap((row) => [where(row), " "]);
  return el("div", { class: "finds" }, el("h2", { class: "unseen" }, "Findings"),
    masked.length ? card("Masked, by whose fault and why", lines(["rows", "cause", "reason, numbers as #", "in"],
      masked.map((each) => [String(each.count), onLine(each.cause, 40), el("code", {}, onLine(each.text)),
        some(each.rows)]))) : null,
    card("The least likely sampled tokens", lines(["logprob", "token", "in"], tokens.map((each) =>
      [number(each.logprob), el("code", {}, tokenText(each.id)), where(each.row, { tab: "tokens", at: each.at })]))),
    gaps.length ? card("The tokens on which trainer and engine differ most",
      lines(["trainer − engine", "ratio", "token", "in"], gaps.map((each) =>
        [number(each.gap), number(Math.exp(each.gap)), el("code", {}, tokenText(each.id)),
          where(each.row, { tab: "tokens", at: each.at })]))) : null,
    card("The slowest calls, waits included", lines(["time", "tool", "outcome", "in"], slow.map((each) =>
      [seconds(each.seconds), tool(each), onLine(each.outcome, 40), where(each.row, { call: each.call })]))),
    rewards.parts.length ? card("Parts of the reward that agree with nothing",
      lines(["part", "rows", "most like", "correlation"], rewards.parts.map((each) => [onLine(each.part, 60),
        String(each.rows), each.always === null ? onLine(each.with, 60) : `always ${number(each.always)}`,
        number(each.correlation)]))) : null,
    rewards.suspects.length ? card("Tests that no answer passes, though some pass others",
      lines(["group", "tests", "in"], rewards.suspects.map((each) =>
        [onLine(each.group, 40), onLine(each.tests.join(" "), 100), where(each.row)]))) : null,
    card("Calls that failed the same way",
      lines(["calls", "tool", "outcome", "last line of the answer, numbers as #", "in"], failures.map((each) =>
        [String(each.calls), tool(each), onLine(each.outcome, 40), el("code", {}, onLine(each.text)),
          some(each.rows)])),
      truncated ? el("p", {}, "There was too much of a kind to count all of it.") : null),
    card(`${many(flat.length, "group")} without signal`,
      lines(["group", "rows", "every score", "in"], flat.slice(0, 50).map((each) => [groupLabel(each),
        String(each.members.length), number(each.mean),
          el("a", { href: address({ view: "group", row: each.members[0] }) },
          `step ${label(each.members[0])}, side by side`)]))));
}

// Two steps: rows of the same group and rank are pairs, the largest change of the score first.
function compareView(picked, state) {
  if (facts.steps.length < 2) return el("p", {}, "The run has one step: there is nothing to compare.");
  const chosen = (name, otherwise) => {
    const at = facts.steps.findIndex((each) => each.label === state.get(name));
    return at < 0 ? otherwise : at;
  };
  const before = chosen("from", 0), after = chosen("to", facts.steps.length - 1);
  const all = Array.from({ length: rows.count }, (_, i) => i);
  const of = (step) => all.filter((row) => rows.steps[row] === step && rows.places[row]);
  const uids = new Set(of(before).map((row) => value("uid", row)).filter(Boolean));
  const byUid = of(after).some((row) => uids.has(value("uid", row)));
  const ranked = (step) => {
    const ranks = new Map(), found = new Map();
    for (const row of sortedBy(of(step), (each) => value("index", each), false)) {
      const key = (byUid ? value("uid", row) : rows.prompts[row]) ?? `line ${value("line", row)}`;
      ranks.set(key, (ranks.get(key) ?? -1) + 1);
      found.set(`${ranks.get(key)} ${key}`, row);
    }
    return found;
  };
  const later = ranked(after);
  let pairs = [...ranked(before)].filter(([key]) => later.has(key)).map(([key, row]) =>
    ({ row, then: later.get(key) }));
  const change = (name) => ({ row, then }) =>
    (isNumber(value(name, row)) && isNumber(value(name, then)) ? value(name, then) - value(name, row) : null);
  pairs = sortedBy(pairs,
    (each) => { const found = change("score")(each); return found === null ? null : Math.abs(found); }, true);
  const columns = [["group", 28, ({ row }) => onLine(value("uid", row) ?? "", 28)],
    ["score before", 13, ({ row }) => value("score", row)], ["after", 9, ({ then }) => value("score", then)],
    ["change", 9, change("score")],
    ["ended by", 18, ({ then }) => value("stop_reason", then)], ["tokens", 9, change("response_tokens")],
      ["turns", 7, change("turns")]]
    .map(([title, width, get]) =>
      ({ key: title, title, width, number: !["group", "ended by"].includes(title),
      text: (i) => number(get(pairs[i])) }));
  const list = table({ label: "pairs", columns,
    open: (i) => go({ view: "pair", row: pairs[i].row, then: pairs[i].then }) });
  const choice = (name, at) =>
    el("label", {}, `${name} `,
    el("select", { on: { change: (event) => go({ [name]: event.target.value }) } },
    facts.steps.map((each, i) => el("option", { value: each.label, selected: i === at }, each.label))));
  const known = pairs.map(change("score")).filter(isNumber);
  const nothing = pairs.length ? null : el("p", {}, "These steps share no group, and no prompt.");
  return el("div", { class: "fill" },
    el("p", { class: "legend" }, "step ", choice("from", before), " ", choice("to", after),
    ` ${many(pairs.length, "pair")}` + (known.length ? `, mean change of the score ${number(sum(known) / known.length)}`
      : "")), nothing ?? list.show(pairs.length).node);
}
