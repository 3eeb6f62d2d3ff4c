// The alignment of a hypothesis, for every page that shows one: its markup is alignment.html.

const MOST_CELLS = 10000; // a larger heatmap would be slow, and too fine to read
const SLIGHT = 0.05; // a weight that is not worth a word
const byId = (id) => document.getElementById(id);

/** An element with these properties and children; text from outside becomes text, never markup. */
function element(tag, properties, ...children) {
  const { data, ...rest } = properties ?? {};
  const made = Object.assign(document.createElement(tag), rest);
  Object.assign(made.dataset, data);
  made.append(...children);
  return made;
}

// The alignment: two lines of words and a heatmap, which light up together.

const segmenter = window.Intl?.Segmenter && new Intl.Segmenter(undefined, { granularity: "word" });
let shown = null; // the hypothesis
let view = null; // its words, weights and elements
let held = null; // what stays lit: {target, source}, each a place or null

/** Pieces of a sentence as {text, places, end}; joined to words, or each token for itself. */
function unitsOf(tokens, grouped) {
  const finished = tokens.at(-1) === "</s>";
  const pieces = finished ? tokens.slice(0, -1) : tokens;
  const starts = grouped ? new Set(Array.from(segmenter.segment(pieces.join("")), (word) => word.index)) : null;
  const units = [];
  let length = 0;
  pieces.forEach((text, place) => {
    const last = units.at(-1);
    // The tokens before the last of a character have no text, and go with it.
    if (grouped && last && (!starts.has(length) || !last.text.trim())) {
      last.text += text;
      last.places.push(place);
    } else {
      units.push({ text, places: [place], end: false });
    }
    length += text.length;
  });
  if (finished) units.push({ text: "", places: [pieces.length], end: true });
  return units;
}

/** The weights between words: a source word has the sum of its tokens, a target word the mean. */
function weightsOf(alignment, targets, sources) {
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  return targets.map(({ places: rows }) => sources.map(({ places: columns }) =>
    sum(rows.map((row) => sum(columns.map((column) => alignment[row][column])))) / rows.length));
}

const nameOf = ({ text, end }) => end ? "end of sentence" : text.trim() || "part of a character";

/** Shows {tokens, source_tokens, alignment}. */
function showAlignment(hypothesis) {
  shown = hypothesis;
  const grouped = byId("grouped").checked && Boolean(segmenter);
  const [target, source] = [shown.tokens, shown.source_tokens].map((tokens) => unitsOf(tokens, grouped));
  view = {
    units: { target, source },
    weights: weightsOf(shown.alignment, target, source),
    faces: { target: writeWords("target", target), source: writeWords("source", source) },
    cells: [],
  };
  const small = target.length * source.length <= MOST_CELLS;
  byId("legend").textContent = small
    ? "How much of each word of the translation (rows) came from each word of the text (columns), in percent"
    : "The text is too long for a heatmap. Pointing at a word still shows what belongs to it.";
  byId("heatmap-region").replaceChildren();
  if (small) drawHeatmap();
  held = null;
  light(null);
}

/** An element for a word, which says its name where it has no text of its own. */
function faceOf(tag, side, unit, place, properties) {
  const made = element(tag, { ...properties, data: { [side]: place } });
  const text = unit.text.trim();
  if (text) {
    // A line is one text, where the order and the joining of letters cross the words; a cell is not.
    made.append(tag === "th" ? element("bdi", { textContent: text }) : text);
  } else {
    made.ariaLabel = nameOf(unit);
    made.append(element("span", { className: "mark", textContent: unit.end ? "end" : unit.text ? "␣" : "·" }));
  }
  return made;
}

/** Writes a line of words; the elements that light up with each, of which the heatmap has more. */
function writeWords(side, units) {
  const faces = units.map((unit, place) => [
    faceOf("span", side, unit, place, { className: "word", role: "button", tabIndex: place ? -1 : 0 }),
  ]);
  // Space stands between the words, so that it is not lit with them.
  byId(`${side}-words`).replaceChildren(...units.flatMap(({ text, end }, place) => {
    const [before] = /^\s*/.exec(text);
    const after = text.trim() ? /\s*$/.exec(text)[0] : "";
    return [end ? "\u00a0" : before, ...faces[place], after];
  }));
  return faces;
}

function drawHeatmap() {
  const { units, weights, faces } = view;
  const heads = (side, scope) => units[side].map((unit, place) => {
    const head = faceOf("th", side, unit, place, { scope, title: nameOf(unit) });
    faces[side][place].push(head);
    return head;
  });
  const columns = heads("source", "col");
  const rows = heads("target", "row");
  view.cells = weights.map((row, i) => row.map((weight, j) => {
    const cell = element("td", { className: weight < SLIGHT ? "slight" : "", textContent: Math.round(weight * 100), data: { target: i, source: j } });
    cell.style.setProperty("--weight", weight);
    return cell;
  }));
  view.table = element("table", { id: "heatmap", dir: getComputedStyle(byId("source-words")).direction },
    element("thead", {}, element("tr", {}, element("td"), ...columns)),
    element("tbody", {}, ...rows.map((head, i) => element("tr", {}, head, ...view.cells[i]))));
  view.table.setAttribute("aria-labelledby", "legend");
  byId("heatmap-region").append(view.table);
  fit();
}

/** Turns the words above the columns where they would not fit beside each other. */
function fit() {
  const table = view?.table;
  if (!table) return;
  table.classList.remove("dense");
  table.classList.toggle("dense", table.offsetWidth > byId("heatmap-region").clientWidth);
}

/** Lights what belongs to a place: {target: i} or {source: j}, both for a cell, null for nothing. */
function light(place) {
  const { units, weights, faces, table, cells } = view;
  const { target: i = null, source: j = null } = place ?? {};
  const both = i !== null && j !== null;
  const mark = (side, one, other, weight) => faces[side].forEach((elements, k) => {
    const value = other === null || (both && k !== one) ? 0 : weight(k);
    for (const item of elements) {
      item.classList.toggle("pointed", k === one && !both);
      item.classList.toggle("paired", k === one && both);
      item.classList.toggle("lit", value > 0);
      item.style.setProperty("--weight", value);
    }
    elements[0].ariaPressed = String(held?.[side] === k);
  });
  mark("source", j, i, (k) => weights[i][k]);
  mark("target", i, j, (k) => weights[k][j]);
  table?.classList.toggle("pointing", place !== null);
  cells.forEach((row, r) => row.forEach((cell, c) => {
    cell.classList.toggle("lit", r === i || c === j);
    cell.classList.toggle("pointed", r === i && c === j);
  }));
  byId("detail").replaceChildren(...describe(units, weights, i, j));
}

/** What is lit, as a sentence. */
function describe(units, weights, i, j) {
  if (i === null && j === null) return ["Point at a word to see where it came from or went to."];
  const quoted = (unit) => unit.end ? nameOf(unit) : element("bdi", { textContent: `“${nameOf(unit)}”` });
  const percent = (weight) => ` ${Math.round(weight * 100)}%`;
  if (i !== null && j !== null) return [quoted(units.target[i]), " from ", quoted(units.source[j]), percent(weights[i][j])];
  const [unit, others, weigh, verb] = j === null
    ? [units.target[i], units.source, (k) => weights[i][k], " came from "]
    : [units.source[j], units.target, (k) => weights[k][j], " went to "];
  const most = others.map((other, k) => [weigh(k), other]).filter(([weight]) => weight >= SLIGHT);
  most.sort(([a], [b]) => b - a);
  if (!most.length) return [quoted(unit), verb, "no word in particular"];
  return [quoted(unit), verb, ...most.slice(0, 4).flatMap(([weight, other], k) => [k ? ", " : "", quoted(other), percent(weight)])];
}

/** The place that an event is about, or null. */
function placeOf(event) {
  const { dataset } = event.target.closest("[data-target], [data-source]") ?? {};
  if (!dataset) return null;
  const place = (side) => dataset[side] === undefined ? null : Number(dataset[side]);
  return { target: place("target"), source: place("source") };
}

function listenToAlignment() {
  const section = byId("alignment");
  const same = (a, b) => a !== null && b !== null && a.target === b.target && a.source === b.source;
  section.addEventListener("pointerover", (event) => light(placeOf(event) ?? held));
  section.addEventListener("pointerleave", () => light(held));
  section.addEventListener("focusin", (event) => light(placeOf(event) ?? held));
  section.addEventListener("focusout", () => light(held));
  const hold = (place) => {
    held = same(place, held) ? null : place;
    light(held);
  };
  section.addEventListener("click", (event) => { if (placeOf(event)) hold(placeOf(event)); });
  section.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      held = null;
      light(null);
    }
    const word = event.target.closest(".word");
    if (!word || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") hold(placeOf(event));
    else if (!walk(word, event.key)) return;
    event.preventDefault();
  });
  byId("grouped").addEventListener("change", () => showAlignment(shown));
  byId("grouping").hidden = !segmenter;
  new ResizeObserver(fit).observe(byId("heatmap-region"));
}

/** Moves the focus along a line of words; each line is one stop of the Tab key. */
function walk(word, key) {
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
