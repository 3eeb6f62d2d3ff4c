// The byte-level tokenizers of `Tokenizer.train` in JavaScript: the same ids, and the same texts.

const PAD = 0, UNK = 1, BOS = 2, EOS = 3;
const SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"];
const MAX_CACHED_PARTS = 10000;

// The parts of a text, as in text/tokenizer.py. Each digit is a part of its own.
const DIGIT = /(\p{N})/u;
const WORDS = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}[\p{L}\p{M}\u200C\u200D]*| ?[^\p{White_Space}\p{L}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const SYMBOL = /[\t; ][^\t; ]*/g; // in later columns of a source; see text/columns.py
const MARK = "\t"; // first character of such a symbol in a vocabulary
// Kinds without words, by their pattern in the file.
const PATTERNS = { "[\\s\\S]": /[^]/gu, " [^ ]*": / [^ ]*/gu };

// Printable Latin-1 letters represent themselves as bytes. The letters from U+0100 on represent the
// other bytes in order.
const isPrintable = (byte) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
let others = 0;
const LETTERS = Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : 0x100 + others++));
const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));

const toBytes = (text) => new TextEncoder().encode(text);
const toLetters = (text) => Array.from(toBytes(text), (byte) => LETTERS[byte]);
const withoutSpace = (part) => part.replace(/^ /, "");

/** The vocabulary of one language. */
class Side {
  /** `document` is a language of tokenizer.json; `spelling` that of its pieces, if the file has one. */
  constructor(document, spelling) {
    const steps = (step, name) => step === null ? [] : step[name] ?? [step];
    const normalizers = steps(document.normalizer, "normalizers").map(({ type }) => type);
    const patterns = steps(document.pre_tokenizer, "pretokenizers").map(({ pattern }) => pattern?.Regex);
    this.form = normalizers.find((type) => /^NF(K?C|D)$/.test(type));
    this.addsSpace = normalizers.includes("Prepend");
    this.parts = patterns.map((pattern) => PATTERNS[pattern]).find(Boolean);
    this.stripsSpace = spelling?.strips_space ?? true; // whether texts lose their first space
    this.hasColumns = spelling?.has_columns ?? false;
    this.unknown = spelling?.mark === "" ? ` ${SPECIAL[UNK]}` : SPECIAL[UNK]; // symbols have spaces
    this.ids = new Map(Object.entries(document.model.vocab));
    this.pieces = [];
    for (const [piece, id] of this.ids) {
      this.pieces[id] = piece[0] === MARK
        ? toBytes(piece.slice(1))
        : Uint8Array.from(piece, (letter) => BYTES.get(letter));
    }
    this.longest = this.pieces.reduce((longest, piece, id) => id in SPECIAL ? longest : Math.max(longest, piece.length), 0);
    // Rank and id of each pair of ids that is merged.
    this.merges = document.model.type === "BPE" ? new Map() : null;
    (document.model.merges ?? []).forEach((merge, rank) => {
      const [left, right] = typeof merge === "string" ? merge.split(" ") : merge;
      this.merges.set(this.pair(this.ids.get(left), this.ids.get(right)), [rank, this.ids.get(left + right)]);
    });
    this.cache = new Map();
  }

  pair(left, right) {
    return left * this.ids.size + right;
  }

  /** Returns the parts of a text, whose pieces are found one part at a time, and the symbols of later columns. */
  split(text) {
    if (this.form) text = text.normalize(this.form);
    const tab = this.hasColumns ? text.indexOf("\t") : -1;
    const symbols = tab < 0 ? [] : text.slice(tab).match(SYMBOL);
    if (tab >= 0) text = text.slice(0, tab);
    if (this.addsSpace && text) text = ` ${text}`;
    const parts = this.parts
      ? text.match(this.parts) ?? []
      : text.split(DIGIT).flatMap((part) => part.match(DIGIT) ? [part] : part.match(WORDS) ?? []);
    return { parts, symbols };
  }

  /**
   * Returns the ids of a text, the last of which is the end of the sentence. `numbered` has the ids
   * of numbered words, which are unknown to the vocabulary.
   */
  encode(text, numbered = new Map()) {
    const { parts, symbols } = this.split(text);
    const known = parts.map((part) => this.encodePart(part));
    const ids = numbered.size
      ? known.map(([id], index) => id === UNK ? numbered.get(withoutSpace(parts[index])) ?? UNK : id)
      : known.flat();
    return [...ids, ...symbols.map((symbol) => this.ids.get(MARK + symbol) ?? UNK), EOS];
  }

  /** Returns the bytes of each id, with those of copied words. */
  piecesWith(words) {
    return words.length ? [...this.pieces, ...words.map((word) => toBytes(` ${word}`))] : this.pieces;
  }

  encodePart(part) {
    if (!this.cache.has(part)) {
      if (this.cache.size === MAX_CACHED_PARTS) this.cache.clear();
      const letters = toLetters(part);
      const ids = this.merges ? this.merge(letters.map((letter) => this.ids.get(letter))) : [this.ids.get(letters.join("")) ?? UNK];
      this.cache.set(part, ids);
    }
    return this.cache.get(part);
  }

  /** Merges the pair with the lowest rank, the leftmost one of equal pairs, until none is left. */
  merge(ids) {
    const mergeAt = (i) => i + 1 < ids.length && this.merges.get(this.pair(ids[i], ids[i + 1])) || [Infinity, null];
    const merges = ids.map((_, i) => mergeAt(i)); // of each id with the next one
    for (;;) {
      let best = 0;
      for (let i = 1; i < merges.length; i++) if (merges[i][0] < merges[best][0]) best = i;
      const [rank, merged] = merges[best];
      if (rank === Infinity) return ids;
      ids.splice(best, 2, merged);
      merges.splice(best, 1);
      merges[best] = mergeAt(best);
      if (best > 0) merges[best - 1] = mergeAt(best - 1);
    }
  }

  /**
   * Returns the ids of the beginning of a text, and pairs of a position and an id that may end it
   * there, because its bytes start with all the rest; see `encode_constraints` in search_options.py.
   * Returns null if no ids spell the beginning exactly. `words` are the numbered words of the source.
   */
  encodePrefix(text, words = []) {
    const numbered = new Map(); // the first of two source pieces that are the same word
    words.forEach((word, number) => { if (!numbered.has(word)) numbered.set(word, this.pieces.length + number); });
    const pieces = this.piecesWith(words);
    const longest = words.reduce((longest, word) => Math.max(longest, toBytes(word).length + 1), this.longest);
    const startsWith = (piece, bytes) => bytes.length <= piece.length && bytes.every((byte, index) => byte === piece[index]);
    const ids = this.encode(text, numbered).slice(0, -1);
    const addsSpace = this.stripsSpace && text && (!ids.length || ids[0] in SPECIAL || pieces[ids[0]][0] === 0x20);
    // What is left of the bytes before each id and after the last one, up to one that spells other bytes.
    const rests = [toBytes(addsSpace ? ` ${text}` : text)];
    for (const id of ids) {
      if (id in SPECIAL || !startsWith(rests.at(-1), pieces[id])) break;
      rests.push(rests.at(-1).subarray(pieces[id].length));
    }
    ids.length = rests.length - 1;
    const completions = new Map(); // a position for each id: the first one
    for (let position = ids.length; position >= 0 && rests[position].length <= longest; position--) {
      if (!rests[position].length) continue;
      pieces.forEach((piece, id) => {
        if (!(id in SPECIAL) && id !== ids[position] && startsWith(piece, rests[position])) completions.set(id, position);
      });
    }
    if (rests.at(-1).length) { // a completion spells the beginning: the one that adds least to it
      if (!completions.size) return null;
      const order = ([p, i], [q, j]) => q - p || pieces[i].length - pieces[j].length || i - j;
      const [[position, last]] = Array.from(completions, ([id, position]) => [position, id]).sort(order);
      ids.splice(position, Infinity, last);
      completions.delete(last);
    }
    return { ids, completions: Array.from(completions, ([id, position]) => [position, id]) };
  }

  /**
   * Returns the readable piece of each id. A character of several ids is at the last of them.
   * `words` are the numbered words of the source.
   */
  tokens(ids, words = []) {
    const pieces = this.piecesWith(words);
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    const tokens = [];
    // An incomplete character belongs to the piece before.
    const end = () => { if (tokens.length) tokens[tokens.length - 1] += decoder.decode(); };
    for (const id of ids) {
      let text = "";
      if (id in SPECIAL || !(id in pieces)) {
        end();
        if (id !== PAD && id !== BOS) text = id === EOS ? SPECIAL[EOS] : this.unknown;
      } else {
        text = decoder.decode(pieces[id], { stream: true });
      }
      tokens.push(this.stripsSpace && !tokens.length ? text.replace(/^ /, "") : text);
    }
    end();
    return tokens;
  }
}

/** The tokenizer of an artifact. `contents` is the document of its tokenizer.json. */
export class Tokenizer {
  constructor({ source, target, spellings, copied_words }) {
    this.source = new Side(source, spellings?.[0]);
    const isShared = target === null && !this.source.hasColumns;
    this.target = isShared ? this.source : new Side(target ?? source, spellings?.[1]);
    this.copiedWords = copied_words ?? 0;
  }

  /**
   * Returns the ids of a source, and its numbered words, which have no piece in the target and can
   * be copied; see text/copied_words.py. Without copied words there are none.
   */
  encodeSource(text) {
    const numbered = new Map(), words = []; // source ids by the id of a known word and the text of others
    for (const part of this.copiedWords ? this.source.split(text).parts : []) {
      const [id] = this.source.encodePart(part);
      const word = withoutSpace(part), key = id === UNK ? word : id;
      const isCopied = id !== UNK && this.target.ids.has(toLetters(part).join(""));
      if (isCopied || numbered.has(key) || words.length === this.copiedWords) continue;
      numbered.set(key, this.source.pieces.length + words.length);
      words.push(this.target.form ? word.normalize(this.target.form) : word);
    }
    return { ids: this.source.encode(text, numbered), words };
  }
}

export { EOS };
