// Lists of any length: only the lines that are seen are in the document. One tab stop; arrows, pages and ends move the
// cursor, Enter opens its line.

class List {
  // `draw(i)` is the content of line i; `open(i)` is called by Enter and a click; `height` is a line's, in pixels.
  // With a `head` it is a grid, each line a row of one cell.
  constructor({ label, height, draw, open = () => {}, moved = () => {}, head = null, cls = "" }) {
    Object.assign(this, { height, draw, open, moved, count: 0, cursor: 0, lines: new Map() });
    this.inner = el("div", { class: "lines", role: head ? "rowgroup" : "presentation" });
    this.node = el("div", { class: `list ${cls}`, tabindex: 0, role: head ? "grid" : "listbox", "aria-label": label,
      on: { scroll: () => this.later(), keydown: (event) => this.key(event), click: (event) => this.click(event) } },
        head, this.inner);
    this.head = head;
    new ResizeObserver(() => this.later()).observe(this.node);
  }

  show(count, cursor = 0) {
    this.count = count;
    this.cursor = Math.max(0, Math.min(cursor, count - 1));
    this.inner.style.height = `${Math.max(1, count) * this.height}px`;
    this.again();
    if (cursor) requestAnimationFrame(() => this.reveal());
    return this;
  }

  again() {
    for (const line of this.lines.values()) line.remove();
    this.lines.clear();
    this.render();
  }

  later() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.render(); });
  }

  get space() { return this.node.clientHeight - (this.head?.offsetHeight ?? 0); }

  render() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / this.height) - 8);
    const last = Math.min(this.count, first + Math.ceil((this.space || 600) / this.height) + 16);
    for (const [i, line] of this.lines) if (i < first || i >= last) { line.remove(); this.lines.delete(i); }
    const fresh = document.createDocumentFragment();
    for (let i = first; i < last; i++) {
      if (this.lines.has(i)) continue;
      const drawn = this.head ? el("span", { role: "gridcell" }, this.draw(i)) : this.draw(i);
      const line = el("div", { class: "line", role: this.head ? "row" : "option", id: `${this.id}-${i}` }, drawn);
      line.style.top = `${i * this.height}px`;
      line.dataset.i = i;
      this.lines.set(i, line);
      fresh.append(line);
    }
    this.inner.append(fresh);
    this.mark();
  }

  get id() { return (this.name ??= `list${(List.made = (List.made ?? 0) + 1)}`); }

  mark() {
    for (const [i, line] of this.lines) line.setAttribute("aria-selected", i === this.cursor);
    if (this.lines.has(this.cursor)) this.node.setAttribute("aria-activedescendant", `${this.id}-${this.cursor}`);
    else this.node.removeAttribute("aria-activedescendant");
  }

  reveal() {
    const top = this.cursor * this.height, space = this.space || 600;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    if (top + this.height > this.node.scrollTop + space) this.node.scrollTop = top + this.height - space;
    this.render();
  }

  move(to) {
    const cursor = Math.max(0, Math.min(to, this.count - 1));
    if (cursor === this.cursor) return;
    this.cursor = cursor;
    this.reveal();
    this.moved(cursor);
  }

  key(event) {
    if (event.target !== this.node || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.space / this.height) - 1);
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -this.count,
      g: -this.count, End: this.count, G: this.count };
    if (Object.hasOwn(moves, event.key)) this.move(this.cursor + moves[event.key]);
    else if (event.key === "Enter" && this.count) this.open(this.cursor);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  click(event) {
    const line = event.target.closest(".line");
    if (!line || event.target.closest("a, button")) return;
    this.move(Number(line.dataset.i));
    this.open(this.cursor);
  }
}

function padded(text, width, left) {
  const shown = String(text), size = wide(shown);
  if (size > width) return shown.length === size ? `${shown.slice(0, width - 1)}…`
    : padded([...shown].slice(0, width >> 1).join(""), width, left);
  return left ? " ".repeat(width - size) + shown : shown + " ".repeat(width - size);
}

// A table as a list: columns are {title, width, text(i), number, sort}; `sorted` is called with a column's key.
function table({ label, columns, open, sort, sorted, cls }) {
  const grid = columns.map((each) => `${each.width}ch`).join(" ");
  const place = (node) => { node.style.gridTemplateColumns = grid; return node; };
  const head = place(el("div", { class: "head", role: "row" }, columns.map((each) => {
    const mark = !each.key ? "" : sort === `-${each.key}` ? " ▾" : sort === each.key ? " ▴" : "";
    return el("span", { class: each.number ? "number" : "", role: "columnheader" }, !sorted ? each.title
      : el("button", { title: each.help, "aria-label": `sort by ${each.title}${mark && ", sorted"}`,
        on: { click: () => sorted(each.key) } }, each.title + mark));
  })));
  // One text a line, in a font of fixed width: a line of twenty elements would be seen while one scrolls.
  const draw = (i) => columns.map((each) => padded(each.text(i), each.width, each.number)).join("  ");
  const list = new List({ label, height: 24, draw, open, head, cls: `table ${cls ?? ""}` });
  const wide = `${sum(columns.map((each) => each.width + 2))}ch`;
  head.style.minWidth = wide;
  list.inner.style.minWidth = wide;
  return list;
}
