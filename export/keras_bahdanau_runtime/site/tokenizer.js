// The tokenizers of `Tokenizer.train`, of SentencePiece and of subword-nmt in JavaScript: the same ids,
// and the same texts.

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

// Steps of tokenizers of SentencePiece and subword-nmt; see text/tokenizer_import.py. The regular
// expressions are written in another way than in the file.
const META_SPACE = "\u2581", WORD_END = "</w>";
const EXPRESSIONS = { " {2,}": / {2,}/g, "\\A | \\z": /^ | $/g, "(?<!\u2581)\u2581+\\z": /(?<!\u2581)\u2581+$/ };
const SPLITS = {
  MergedWithNext: (part, mark) => part.match(new RegExp(`${mark}[^${mark}]+|${mark}|[^${mark}]+`, "gu")) ?? [],
  Isolated: (part, mark) => part.split(mark).flatMap((rest, index) => index ? [mark, rest] : [rest]).filter(Boolean),
  Removed: (part, mark) => part.split(mark).filter(Boolean),
};
const BYTE_PIECE = /^<0x([0-9A-F]{2})>$/;
const UNKNOWN_PENALTY = 10; // of the score of an unknown character, below the lowest one of a piece

const toBytes = (text) => new TextEncoder().encode(text);
const toLetters = (text) => Array.from(toBytes(text), (byte) => LETTERS[byte]);
const withoutSpace = (part) => part.replace(/^ /, "");
const stepsOf = (step, name) => step === null ? [] : step[name] ?? [step];

/** The rules of SentencePiece that replace characters; see text/charsmap.py. */
class CharacterMap {
  /** `charsmap` is a double-array trie of keys, and their values, in base64. */
  constructor(charsmap) {
    const contents = Uint8Array.from(atob(charsmap), (character) => character.charCodeAt(0));
    const view = new DataView(contents.buffer), size = view.getUint32(0, true);
    this.units = Uint32Array.from({ length: size / 4 }, (_, index) => view.getUint32(4 + 4 * index, true));
    this.values = contents.subarray(4 + size);
  }

  /** Returns the place of the children of a node, a byte of which leads to each of them. */
  base(node) {
    const unit = this.units[node];
    return node ^ ((unit >>> 10) << ((unit & 512) >>> 6));
  }

  /** Returns a text in which the longest key at each place is replaced. */
  replace(text) {
    const bytes = toBytes(text), parts = [];
    const isContinued = (place) => (bytes[place] & 0xc0) === 0x80; // within a character
    for (let start = 0; start < bytes.length;) {
      let end = start + 1, value = null;
      while (isContinued(end)) end++;
      let base = this.base(0);
      for (let place = start; place < bytes.length; place++) {
        const node = base ^ bytes[place], unit = this.units[node];
        if (unit === undefined || unit >= 2 ** 31 || (unit & 255) !== bytes[place]) break;
        base = this.base(node);
        if (unit >>> 8 & 1 && !isContinued(place + 1)) {
          end = place + 1;
          value = this.units[base] & 0x7fffffff;
        }
      }
      parts.push(value === null ? bytes.subarray(start, end) : this.values.subarray(value, this.values.indexOf(0, value)));
      start = end;
    }
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return parts.map((part) => decoder.decode(part)).join("");
  }
}

/** The vocabulary of one language. */
class Side {
  /** `document` is a language of tokenizer.json; `spelling` that of its pieces, if the file has one. */
  constructor(document, spelling) {
    this.normalizers = stepsOf(document.normalizer, "normalizers");
    this.splits = stepsOf(document.pre_tokenizer, "pretokenizers");
    const types = this.normalizers.map(({ type }) => type);
    this.form = types.find((type) => /^NF(K?C|D)$/.test(type));
    this.addsSpace = types.includes("Prepend");
    this.parts = this.splits.map(({ pattern }) => PATTERNS[pattern?.Regex]).find(Boolean);
    this.kind = spelling?.kind ?? "byte-level";
    this.isLearned = this.kind === "byte-level";
    this.endsWords = this.kind === "word-ends"; // whether a space is at the end of a word's last piece
    this.characters = spelling?.charsmap ? new CharacterMap(spelling.charsmap) : null;
    this.replacements = spelling?.replacements ?? null; // ids instead of each of the last ids
    this.stripsSpace = spelling?.strips_space ?? true; // whether texts lose their first space
    this.hasColumns = spelling?.has_columns ?? false;
    this.unknown = spelling?.mark === "" ? ` ${SPECIAL[UNK]}` : SPECIAL[UNK]; // symbols have spaces
    if (this.endsWords) this.unknown += " ";
    const { type, vocab, merges, end_of_word_suffix: suffix, fuse_unk, byte_fallback } = document.model;
    this.suffix = suffix ?? "";
    this.fusesUnknown = fuse_unk ?? true;
    this.fallsBack = byte_fallback ?? false;
    this.scores = type === "Unigram" ? vocab.map(([, score]) => score) : null;
    this.lowest = this.scores?.reduce((lowest, score) => Math.min(lowest, score), Infinity);
    this.ids = new Map(type === "Unigram" ? vocab.map(([piece], id) => [piece, id]) : Object.entries(vocab));
    this.longestName = [...this.ids.keys()].reduce((longest, piece) => Math.max(longest, piece.length), 0);
    this.pieces = [];
    for (const [piece, id] of this.ids) this.pieces[id] = this.bytesOf(piece);
    this.pieces.length -= this.replacements?.length ?? 0;
    this.longest = this.pieces.reduce((longest, piece, id) => id in SPECIAL ? longest : Math.max(longest, piece.length), 0);
    // Rank and id of each pair of ids that is merged.
    this.merges = type === "BPE" ? new Map() : null;
    (merges ?? []).forEach((merge, rank) => {
      const [left, right] = typeof merge === "string" ? merge.split(" ") : merge;
      this.merges.set(this.pair(this.ids.get(left), this.ids.get(right)), [rank, this.ids.get(left + right)]);
    });
    this.cache = new Map();
  }

  /** Returns the bytes of a piece of the vocabulary; see text/pieces.py. */
  bytesOf(piece) {
    if (this.isLearned) return piece[0] === MARK ? toBytes(piece.slice(1)) : Uint8Array.from(piece, (letter) => BYTES.get(letter));
    if (this.replacements && piece[0] === " ") piece = piece.slice(1);
    else if (piece.includes(" ")) return toBytes(""); // part of no text
    if (this.endsWords) return toBytes(piece.endsWith(WORD_END) ? `${piece.slice(0, -WORD_END.length)} ` : piece);
    const [, byte] = piece.match(BYTE_PIECE) ?? [];
    return byte ? Uint8Array.of(parseInt(byte, 16)) : toBytes(piece.replaceAll(META_SPACE, " "));
  }

  pair(left, right) {
    return left * this.ids.size + right;
  }

  /** Returns the parts of a text, whose pieces are found one part at a time, and the symbols of later columns. */
  split(text) {
    if (!this.isLearned) return { parts: this.splitByFile(text), symbols: [] };
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

  /** Returns the parts of a text by the steps of SentencePiece or subword-nmt. */
  splitByFile(text) {
    if (this.characters) text = this.characters.replace(text);
    for (const { type, prepend, pattern, content } of this.normalizers) {
      if (type === "Prepend") text = text && prepend + text;
      else text = pattern.String === undefined ? text.replace(EXPRESSIONS[pattern.Regex], content) : text.replaceAll(pattern.String, content);
    }
    return this.splits.reduce((parts, { pattern, behavior }) => parts.flatMap((part) => SPLITS[behavior](part, pattern.String)), text ? [text] : []);
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
      : this.replaced(known.flat());
    return [...ids, ...symbols.map((symbol) => this.ids.get(MARK + symbol) ?? UNK), EOS];
  }

  /** Returns the bytes of each id, with those of copied words. */
  piecesWith(words) {
    return words.length ? [...this.pieces, ...words.map((word) => toBytes(` ${word}`))] : this.pieces;
  }

  encodePart(part) {
    if (!this.cache.has(part)) {
      if (this.cache.size === MAX_CACHED_PARTS) this.cache.clear();
      this.cache.set(part, this.isLearned ? this.encodeLetters(toLetters(part)) : this.scores ? this.likeliest(part) : this.merge(this.characterIds(part)));
    }
    return this.cache.get(part);
  }

  encodeLetters(letters) {
    return this.merges ? this.merge(letters.map((letter) => this.ids.get(letter))) : [this.ids.get(letters.join("")) ?? UNK];
  }

  /** Returns ids in which those that only split text are replaced by ids of the model. */
  replaced(ids) {
    const first = this.pieces.length;
    return this.replacements?.length ? ids.flatMap((id) => id < first ? [id] : this.replacements[id - first]) : ids;
  }

  /** Returns the ids of a text without a piece: those of its bytes, or the unknown one. */
  unknownIds(text) {
    const ids = this.fallsBack ? Array.from(toBytes(text), (byte) => this.ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`)) : [];
    return ids.length && !ids.includes(undefined) ? ids : [UNK];
  }

  /** Returns the ids of the characters of a part, before merges. */
  characterIds(part) {
    const characters = [...part], ids = [];
    characters.forEach((character, index) => {
      const id = this.ids.get(index === characters.length - 1 ? character + this.suffix : character);
      const added = id === undefined ? this.unknownIds(character) : [id];
      if (!(this.fusesUnknown && added[0] === UNK && ids.at(-1) === UNK)) ids.push(...added);
    });
    return ids;
  }

  /** Returns the ids of the pieces of a part whose scores have the largest sum. */
  likeliest(part) {
    const best = [{ score: 0, start: 0, id: null }]; // of the pieces before each place of the part
    const add = (end, candidate) => { if (!best[end] || candidate.score > best[end].score) best[end] = candidate; };
    let start = 0;
    for (const character of part) {
      let isKnown = false;
      for (let end = start + 1; end <= Math.min(part.length, start + this.longestName); end++) {
        const id = this.ids.get(part.slice(start, end));
        if (id === undefined) continue;
        add(end, { score: this.scores[id] + best[start].score, start, id });
        if (end === start + character.length) isKnown = true;
      }
      const end = start + character.length;
      if (!isKnown) add(end, { score: this.lowest - UNKNOWN_PENALTY + best[start].score, start, id: UNK });
      start = end;
    }
    const ids = [];
    for (let end = part.length; end > 0;) {
      let { id, start } = best[end];
      while (id === UNK && start > 0 && best[start].id === UNK) start = best[start].start; // one unknown piece
      ids.push(id === UNK ? this.unknownIds(part.slice(start, end)) : [id]);
      end = start;
    }
    return ids.reverse().flat();
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
    let space = ""; // after the last word, in front of the next one
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
      if (this.endsWords && id !== EOS) {
        text = space + text;
        space = text.endsWith(" ") ? " " : "";
        text = text.slice(0, text.length - space.length);
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
