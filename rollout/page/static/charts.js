// Charts as SVG. Each says its numbers in words too: in a table beside it, or as its label and title.

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, each] of Object.entries(attributes)) node.setAttribute(name, each);
  node.append(...children);
  return node;
}

const titled = (node, text) => (node.append(svg("title", {}, text)), node);

// One curve: [x, y] points, of which y may be null.
function curve(name, points) {
  const known = points.filter(([, y]) => isNumber(y));
  if (!known.length) return null;
  const [width, height, pad] = [260, 84, 6];
  const xs = known.map(([x]) => x), ys = known.map(([, y]) => y);
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const at = ([x, y]) => [
    pad + ((x - left) / (right - left || 1)) * (width - 2 * pad),
    height - pad - (high === low ? 0.5 : (y - low) / (high - low)) * (height - 2 * pad),
  ];
  const places = known.map(at);
  const last = ys.at(-1);
  const says = `${name}: ${number(last)} at the end, between ${number(low)} and ${number(high)}`;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": says, class: "curve" });
  if (low < 0 && high > 0) {
    const [, zero] = at([left, 0]);
    picture.append(svg("line", { x1: 0, x2: width, y1: zero, y2: zero, class: "axis" }));
  }
  picture.append(svg("polyline",
    { points: places.map((each) => each.map((n) => n.toFixed(1)).join()).join(" "), class: "line" }));
  const every = Math.ceil(known.length / 150);
  known.forEach(([x, y], i) => {
    if (i % every && i !== known.length - 1) return;
    const dot = svg("circle", { cx: places[i][0], cy: places[i][1], r: known.length > 40 ? 1.6 : 2.6, class: "dot" });
    picture.append(titled(dot, `step ${x}: ${y}`));
  });
  return el("figure", { class: "small" },
    el("figcaption", {}, el("b", {}, onLine(name, 60)), el("span", { class: "number" }, number(last))),
    picture, el("p", { class: "range" }, `${number(low)} … ${number(high)}`));
}

// Names with their numbers and shares, under one bar of them; `hint` has a text for a name.
function shares(title, pairs, write = String, hint = () => null, first = 1) {
  const known = pairs.map(([name, count], i) => [name, count, `c${(i + first) % 8}`]).filter(([, count]) => count);
  if (!known.length) return null;
  const total = sum(known.map(([, count]) => count));
  const bar = svg("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" });
  let from = 0;
  for (const [name, count, colour] of known) {
    const width = (100 * count) / total;
    bar.append(titled(svg("rect", { x: from, width, height: 8, class: colour }),
      `${onLine(name, 60)}: ${percent(count / total)}`));
    from += width;
  }
  const lines = known.map(([name, count, colour]) => [
    el("span", { title: hint(name) }, el("i", { class: `key ${colour}` }), onLine(name, 60) || "none"),
    numberCell(write(count), { "data-name": name }), numberCell(percent(count / total))]);
  return card(title, bar, tableOf("shares", lines));
}

// Columns of parts that add up, one for each step; `matrix[step][part]`.
function stack(title, labels, names, matrix, whole = true, first = 1) {
  const [width, height] = [560, 120];
  const totals = matrix.map(sum);
  const most = Math.max(...totals);
  if (labels.length < 2 || !most) return null;
  const step = width / labels.length;
  const picture = svg("svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", class: "stack", preserveAspectRatio: "none",
    "aria-label": `${title} by step; the table beside it has the sums` });
  matrix.forEach((parts, i) => {
    let top = height;
    const column = svg("g", {});
    parts.forEach((each, k) => {
      const size = (each / ((whole ? totals[i] : most) || 1)) * height;
      top -= size;
      if (size > 0) column.append(svg("rect",
        { x: i * step, y: top, width: Math.max(0.5, step - (step > 4 ? 1 : 0)), height: size,
        class: `c${(k + first) % 8}` }));
    });
    const says = names.map((name, k) => [name, parts[k]]).filter(([, each]) => each).map(([name, each]) =>
      `${onLine(name, 40)} ${number(each)}`);
    picture.append(titled(column, `step ${labels[i]}: ${says.join(", ")}`));
  });
  return el("figure", { class: "card stacked" }, el("figcaption", {}, `${title} by step`), picture,
    el("p", { class: "range" }, el("span", {}, `step ${labels[0]}`), el("span", {}, `step ${labels.at(-1)}`)));
}
