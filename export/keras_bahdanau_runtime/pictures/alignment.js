// The alignment view of a hypothesis, shared by all pages. Its markup is alignment.html.

const MAX_CELLS = 10000; // a larger heatmap would be slow and unreadable
const MIN_WEIGHT = 0.05; // smaller weights have no text
const byId = (id) => document.getElementById(id);

/** Create an element with properties and children. Strings become text, never markup. */
function element(tag, properties, ...children) {
  const { data, ...rest } = properties ?? {};
  const node = Object.assign(document.createElement(tag), rest);
  Object.assign(node.dataset, data);
  node.append(...children);
  return node;
}

const segmenter = window.Intl?.Segmenter && new Intl.Segmenter(undefined, { granularity: "word" });
let current = null; // the displayed hypothesis
let view = null; // its words, weights and elements
let pinned = null; // the highlight that stays: {target, source}, each a position or null

/** Return the words of a sentence, or its tokens if not `grouped`, as {text, positions, end}. */
function unitsOf(tokens, grouped) {
  const finished = tokens.at(-1) === "</s>";
  const pieces = finished ? tokens.slice(0, -1) : tokens;
  const starts = grouped ? new Set(Array.from(segmenter.segment(pieces.join("")), (word) => word.index)) : null;
  const units = [];
  let length = 0;
  pieces.forEach((text, position) => {
    const last = units.at(-1);
    // A character of several tokens has its text at the last of them. The others join it.
    if (grouped && last && (!starts.has(length) || !last.text.trim())) {
      last.text += text;
      last.positions.push(position);
    } else {
      units.push({ text, positions: [position], end: false });
    }
    length += text.length;
  });
  if (finished) units.push({ text: "", positions: [pieces.length], end: true });
  return units;
}

/** Sum the weights of each source word, and average them over each target word. */
function weightsOf(alignment, targets, sources) {
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  return targets.map(({ positions: rows }) => sources.map(({ positions: columns }) =>
    sum(rows.map((row) => sum(columns.map((column) => alignment[row][column])))) / rows.length));
}

const nameOf = ({ text, end }) => end ? "end of sentence" : text.trim() || "part of a character";

/** Display a hypothesis {tokens, source_tokens, alignment}. */
function showAlignment(hypothesis) {
  current = hypothesis;
  const grouped = byId("grouped").checked && Boolean(segmenter);
  const [target, source] = [current.tokens, current.source_tokens].map((tokens) => unitsOf(tokens, grouped));
  view = {
    units: { target, source },
    weights: weightsOf(current.alignment, target, source),
    elements: { target: writeWords("target", target), source: writeWords("source", source) },
    cells: [],
  };
  const hasHeatmap = target.length * source.length <= MAX_CELLS;
  byId("legend").textContent = hasHeatmap
    ? "Attention of each word of the translation (rows) to each word of the text (columns), in percent"
    : "The text is too long for a heatmap. Point at a word to highlight the aligned words.";
  byId("heatmap-region").replaceChildren();
  if (hasHeatmap) drawHeatmap();
  pinned = null;
  highlight(null);
}

/** Create the element of a word, with a label if it has no text. */
function wordElement(tag, side, unit, position, properties) {
  const node = element(tag, { ...properties, data: { [side]: position } });
  const text = unit.text.trim();
  if (text) {
    // A line is one text, whose direction and joined letters cross words. A heading needs its own.
    node.append(tag === "th" ? element("bdi", { textContent: text }) : text);
  } else {
    node.ariaLabel = nameOf(unit);
    node.append(element("span", { className: "mark", textContent: unit.end ? "end" : unit.text ? "␣" : "·" }));
  }
  return node;
}

/** Write a line of words. Return a list of elements for each word, to which the heatmap adds. */
function writeWords(side, units) {
  const elements = units.map((unit, position) => [
    wordElement("span", side, unit, position, { className: "word", role: "button", tabIndex: position ? -1 : 0 }),
  ]);
  // Spaces are between the elements, so that they are not highlighted.
  byId(`${side}-words`).replaceChildren(...units.flatMap(({ text, end }, position) => {
    const [before] = /^\s*/.exec(text);
    const after = text.trim() ? /\s*$/.exec(text)[0] : "";
    return [end ? "\u00a0" : before, ...elements[position], after];
  }));
  return elements;
}

function drawHeatmap() {
  const { units, weights, elements } = view;
  const headings = (side, scope) => units[side].map((unit, position) => {
    const heading = wordElement("th", side, unit, position, { scope, title: nameOf(unit) });
    elements[side][position].push(heading);
    return heading;
  });
  const columns = headings("source", "col");
  const rows = headings("target", "row");
  view.cells = weights.map((row, i) => row.map((weight, j) => {
    const cell = element("td", { className: weight < MIN_WEIGHT ? "slight" : "", textContent: Math.round(weight * 100), data: { target: i, source: j } });
    cell.style.setProperty("--weight", weight);
    return cell;
  }));
  view.table = element("table", { id: "heatmap", dir: getComputedStyle(byId("source-words")).direction },
    element("thead", {}, element("tr", {}, element("td"), ...columns)),
    element("tbody", {}, ...rows.map((heading, i) => element("tr", {}, heading, ...view.cells[i]))));
  view.table.setAttribute("aria-labelledby", "legend");
  byId("heatmap-region").append(view.table);
  fit();
}

/** Rotate the column headings if they are too wide. */
function fit() {
  const table = view?.table;
  if (!table) return;
  table.classList.remove("dense");
  table.classList.toggle("dense", table.offsetWidth > byId("heatmap-region").clientWidth);
}

/** Highlight the aligned words of {target: i}, {source: j}, or a cell with both; null for none. */
function highlight(position) {
  const { units, weights, elements, table, cells } = view;
  const { target: i = null, source: j = null } = position ?? {};
  const isCell = i !== null && j !== null;
  const mark = (side, selected, other, weight) => elements[side].forEach((nodes, k) => {
    const value = other === null || (isCell && k !== selected) ? 0 : weight(k);
    for (const node of nodes) {
      node.classList.toggle("pointed", k === selected && !isCell);
      node.classList.toggle("paired", k === selected && isCell);
      node.classList.toggle("lit", value > 0);
      node.style.setProperty("--weight", value);
    }
    nodes[0].ariaPressed = String(pinned?.[side] === k);
  });
  mark("source", j, i, (k) => weights[i][k]);
  mark("target", i, j, (k) => weights[k][j]);
  table?.classList.toggle("pointing", position !== null);
  cells.forEach((row, r) => row.forEach((cell, c) => {
    cell.classList.toggle("lit", r === i || c === j);
    cell.classList.toggle("pointed", r === i && c === j);
  }));
  byId("detail").replaceChildren(...describe(units, weights, i, j));
}

/** Describe the highlight in a sentence. */
function describe(units, weights, i, j) {
  if (i === null && j === null) return ["Point at a word to see where it came from or went to."];
  const quoted = (unit) => unit.end ? nameOf(unit) : element("bdi", { textContent: `“${nameOf(unit)}”` });
  const percent = (weight) => ` ${Math.round(weight * 100)}%`;
  if (i !== null && j !== null) return [quoted(units.target[i]), " from ", quoted(units.source[j]), percent(weights[i][j])];
  const [unit, others, weigh, verb] = j === null
    ? [units.target[i], units.source, (k) => weights[i][k], " came from "]
    : [units.source[j], units.target, (k) => weights[k][j], " went to "];
  const aligned = others.map((other, k) => [weigh(k), other]).filter(([weight]) => weight >= MIN_WEIGHT);
  aligned.sort(([a], [b]) => b - a);
  if (!aligned.length) return [quoted(unit), verb, "no word in particular"];
  return [quoted(unit), verb, ...aligned.slice(0, 4).flatMap(([weight, other], k) => [k ? ", " : "", quoted(other), percent(weight)])];
}

/** Return the position of an event's word or cell, or null. */
function positionOf(event) {
  const { dataset } = event.target.closest("[data-target], [data-source]") ?? {};
  if (!dataset) return null;
  const position = (side) => dataset[side] === undefined ? null : Number(dataset[side]);
  return { target: position("target"), source: position("source") };
}

function listenToAlignment() {
  const section = byId("alignment");
  const same = (a, b) => a !== null && b !== null && a.target === b.target && a.source === b.source;
  section.addEventListener("pointerover", (event) => highlight(positionOf(event) ?? pinned));
  section.addEventListener("pointerleave", () => highlight(pinned));
  section.addEventListener("focusin", (event) => highlight(positionOf(event) ?? pinned));
  section.addEventListener("focusout", () => highlight(pinned));
  const togglePin = (position) => {
    pinned = same(position, pinned) ? null : position;
    highlight(pinned);
  };
  section.addEventListener("click", (event) => { if (positionOf(event)) togglePin(positionOf(event)); });
  section.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      pinned = null;
      highlight(null);
    }
    const word = event.target.closest(".word");
    if (!word || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") togglePin(positionOf(event));
    else if (!moveFocus(word, event.key)) return;
    event.preventDefault();
  });
  byId("grouped").addEventListener("change", () => showAlignment(current));
  byId("grouping").hidden = !segmenter;
  new ResizeObserver(fit).observe(byId("heatmap-region"));
}

/** Move the focus along a line of words. The Tab key stops once per line. */
function moveFocus(word, key) {
  const line = word.parentElement;
  const words = [...line.children];
  const forward = getComputedStyle(line).direction === "rtl" ? -1 : 1;
  const steps = { ArrowRight: forward, ArrowLeft: -forward, Home: -words.length, End: words.length };
  if (!(key in steps)) return false;
  const next = words[Math.max(0, Math.min(words.length - 1, words.indexOf(word) + steps[key]))];
  for (const other of words) other.tabIndex = other === next ? 0 : -1;
  next.focus();
  return true;
}
