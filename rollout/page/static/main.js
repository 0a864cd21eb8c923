// The page's start, its address, its views and keys. The address has all of the state, so that Back works and a link is
// a place; it is `#view=rows&step=3&filter=score>0.5`, percent-encoded.

const VIEWS = { run: ["Run", runView], rows: ["Trajectories", rowsView], time: ["Timeline", timeView],
  groups: ["Groups", groupsView], find: ["Findings", findView], compare: ["Compare", compareView],
  group: ["", groupView], row: ["", rowView], pair: ["", pairView] };
const LISTS = ["rows", "time", "groups"];
let order = [], turn = 0, last = null;

const state = () => new URLSearchParams(location.hash.slice(1));

function address(changes) {
  const next = state();
  if ("view" in changes
    && changes.view !== next.get("view")) for (const name of ["sort", "tab", "at", "call", "then",
    "row"]) next.delete(name);
  for (const [name, each] of Object.entries(changes)) if (each === null || each === "") next.delete(name);
    else next.set(name, each);
  return `#${next}`;
}

const go = (changes) => { location.hash = address(changes); };
const nextSort = (sort, key) => (sort === `-${key}` ? key : sort === key ? null : `-${key}`);

function openRow(row, shown) {
  [order, last] = [shown, row];
  go({ view: "row", row });
}

function neighbour(by) {
  const row = Number(state().get("row"));
  const list = order.includes(row) ? order : Array.from({ length: rows.count }, (_, i) => i);
  const next = list[list.indexOf(row) + by];
  if (next === undefined) return;
  last = next;
  location.hash = address({ row: next, at: null, call: null });
}

const extraField = (name) => ({ name, title: name, kind: "extra", width: Math.max(7, Math.min(20, name.length)) });

function rowsView(picked, state) {
  const sort = state.get("sort") ?? "", key = sort.replace(/^-/, "");
  const some = picked.slice(0, 1000);
  const has = (name) => ["line", "score"].includes(name) || some.some((row) => String(value(name, row) ?? "") !== "");
  const fields = [...facts.fields.filter((each) => each.title), ...extraNames().map(extraField)]
    .filter((each) => has(each.name));
  const flat = (name, row) => {
    const found = value(name, row);
    return Array.isArray(found) ? found.join(" ") : found;
  };
  const shown = key ? sortedBy(picked, (row) => flat(key, row), sort[0] === "-") : picked;
  const steps = facts.steps.length > 1 ? [{ key: "", title: "step", width: 7, text: (i) => label(shown[i]) }] : [];
  const columns = [...steps, ...fields.map((each) => ({ key: each.name, title: onLine(each.title, 20), help: each.help,
    width: each.width + 1, number: each.kind === "number", text: (i) => number(flat(each.name, shown[i])) }))];
  const list = table({ label: "trajectories", columns, sort,
    sorted: (name) => name && go({ sort: nextSort(sort, name) }), open: (i) => openRow(shown[i], shown) });
  const scores = picked.filter((row) => value("masked", row) !== "true").map((row) => value("score", row))
    .filter(isNumber);
  const masked = picked.filter((row) => value("masked", row) === "true").length;
  const says = [`${picked.length} of ${rows.count} rows`,
    scores.length ? `mean score ${number(sum(scores) / scores.length)}` : "",
    masked ? `${masked} masked` : "", "Enter opens one"];
  order = shown;
  return el("div", { class: "fill" }, el("p", { class: "legend" }, says.filter(Boolean).join(", ")),
    list.show(shown.length, Math.max(0, shown.indexOf(last))).node);
}

function nav(view) {
  const steps = facts.steps.length > 1;
  byId("nav").replaceChildren(...Object.entries(VIEWS).filter(([name, [title]]) => title
    && (steps || name !== "compare")).map(([name, [title]]) =>
    el("a", { href: address({ view: name }), "aria-current": name === view ? "page" : null }, title)),
    el("button", { on: { click: help }, "aria-label": "keys" }, "?"));
}

function tools(view, now) {
  if (!LISTS.includes(view)) return byId("tools").replaceChildren();
  const filter = el("input",
    { id: "filter", type: "search", spellcheck: "false", placeholder: "filter: score>0.5 not masked",
    "aria-label": "filter", value: now.get("filter") ?? "",
    on: { change: (event) => go({ filter: event.target.value }) } });
  const chosen = chosenStep(view, now);
  const steps = el("select", { "aria-label": "step", on: { change: (event) => go({ step: event.target.value }) } },
    el("option", { value: "all" }, "all steps"),
    facts.steps.map((each, i) => el("option", { value: each.label, selected: i === chosen }, `step ${each.label}`)));
  return byId("tools").replaceChildren(...(facts.steps.length > 1 ? [steps] : []), filter);
}

const say = (text, bad = false) => { byId("state").textContent = text; byId("state").className = bad ? "bad" : ""; };

// The step's position, -1 for all. A timeline is of one step unless all are asked for.
function chosenStep(view, now) {
  const at = facts.steps.findIndex((each) => each.label === now.get("step"));
  return at < 0 && view === "time" && !now.has("step") ? facts.steps.length - 1 : at;
}

async function pickedBy(view, now, here) {
  const step = chosenStep(view, now);
  try {
    const found = await pick(step < 0 ? null : step, now.get("filter") ?? "", (passed, share) => {
      if (here === turn) say(`reading rows: ${percent(share)}, ${passed.length} found`);
      return here === turn;
    });
    if (here === turn) say("");
    return found;
  } catch (error) {
    say(error.message, true);
    return pick(step < 0 ? null : step, "");
  }
}

async function show() {
  const now = state(), here = (turn += 1);
  const view = Object.hasOwn(VIEWS, now.get("view") ?? "") ? now.get("view") : "run";
  nav(view);
  tools(view, now);
  say("");
  let node;
  try {
    const picked = LISTS.includes(view) ? await pickedBy(view, now, here)
      : Array.from({ length: view === "row" ? rows.count : 0 }, (_, i) => i);
    node = await VIEWS[view][1](picked, now);
  } catch (error) {
    node = el("p", { class: "warning" }, `This can't be shown: ${error.message}`);
  }
  if (here !== turn) return;
  document.body.dataset.view = view;
  const warning = facts.unfinished && (view === "run" || LISTS.includes(view))
    ? [el("p", { class: "warning", id: "unfinished" }, visible(facts.unfinished))] : [];
  byId("main").replaceChildren(...warning, node);
  (node.querySelector?.(".list") ?? byId("main")).focus({ preventScroll: true });
  document.body.dataset.shown = location.hash || "#";
}

const KEYS = [["?", "these keys"], ["1 … 6", "the views"], ["/", "filter"],
  ["↑ ↓ j k, PgUp PgDn, Home End g G", "move in a list"], ["Enter", "open"], ["Esc, Backspace", "back"],
  ["n p", "next, previous trajectory"], ["t", "tokens or messages"], ["u", "groups; of a trajectory its own"],
  ["← → h l", "move by a token"], ["x", "next unlikely token"], ["m", "other colours of tokens"],
  ["Tab", "everything else"]];

function help() {
  const close = el("button", { on: { click: () => byId("help").close() } }, "close");
  const known = facts.fields.map((each) => [el("code", {}, each.name), each.help]);
  byId("help").replaceChildren(close, el("h2", {}, "Keys"), tableOf("facts", KEYS), el("h2", {}, "Filters"),
    el("p", {}, 'Terms side by side must all hold: score>0.5 stop_reason=turns not masked text~"regex" word.'),
    tableOf("facts", known));
  byId("help").showModal();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) { if (event.key === "Escape") byId("main").focus();
    return; }
  const now = state(), view = now.get("view") ?? "run", row = now.get("row"),
    titles = [...byId("nav").querySelectorAll("a")];
  const actions = {
    "?": help, "/": () => byId("filter")?.focus(), Escape: () => history.back(), Backspace: () => history.back(),
    n: () => view === "row" && neighbour(1), p: () => view === "row" && neighbour(-1),
    t: () => view === "row" && go({ tab: now.get("tab") === "tokens" ? null : "tokens", at: null, call: null }),
    u: () => (view === "row" ? go({ view: "group", row }) : go({ view: "groups" })),
  };
  if (/^[1-9]$/.test(event.key)) titles[event.key - 1]?.click();
  else if (Object.hasOwn(actions, event.key)) actions[event.key]();
  else return;
  event.preventDefault();
});

// A page that is served asks whether there is more, and is read again when its reader wants that.
function watch() {
  byId("more").addEventListener("click", () => location.assign(`/${location.hash}`));
  setInterval(async () => {
    const stamp = await fetch("/stamp", { cache: "no-store" }).then((answer) => answer.text()).catch(() => facts.live);
    byId("more").hidden = stamp === facts.live;
  }, 3000);
}

addEventListener("hashchange", show);
readIndex().then(show).then(() => facts.live && watch()).catch((error) =>
  byId("main").replaceChildren(el("p", { class: "warning" }, `The page can't be read: ${error.message}`)));
