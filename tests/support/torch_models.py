"""Recurrent models in plain PyTorch, with the weights' names of JoeyNMT, OpenNMT-py and fairseq.

They read one sentence at a time, so there is no padding, and they are written from the equations of
each toolkit. The importers are compared with them.
"""

import argparse

import numpy as np
import torch
from torch import nn

SOURCES = ["a", "red", "ca@@", "t", "sees", "the", "dog"]
TARGETS = ["ein", "roter", "Kat@@", "er", "sieht", "den"]


def randomize(module, seed):
    """Set all weights of a module to random numbers, and return it in the mode of inference."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module.eval()


class TorchModel(nn.Module):
    """Translates ids of a toolkit.

    Attributes:
        pieces: Source and target pieces in the order of the toolkit's ids.
        special: Spelling of padding, unknown, begin and end.
        first: The token before the first output.
        ends_source: Whether sources end with the end token.
    """

    pieces: tuple
    special: tuple
    first: str
    ends_source = True

    def source_ids(self, words):
        ids = [self.pieces[0].index(word) for word in words]
        return [*ids, self.pieces[0].index(self.special[3])] if self.ends_source else ids

    def vocabulary(self, words):
        """The pieces of an output for a source."""
        return self.pieces[1]

    @torch.no_grad()
    def log_probs(self, words, outputs):
        """Log-probabilities `(T + 1, V)` of a step after each of `T` outputs, by toolkit id."""
        annotations, state = self.start(torch.tensor(self.source_ids(words)))
        rows, feed = [], torch.zeros(self.width)
        for word in [self.first, *outputs]:
            token = torch.tensor(self.pieces[1].index(word))
            logits, state, feed = self.step(token, state, feed, annotations)
            rows.append(torch.log_softmax(logits, -1).numpy())
        return np.array(rows)

    def greedy(self, words, limit):
        """The most likely pieces, one at a time, without padding and the start token."""
        vocabulary, outputs = self.vocabulary(words), []
        while len(outputs) < limit:
            scores = self.log_probs(words, outputs)[-1]
            scores[[vocabulary.index(self.special[index]) for index in (0, 2)]] = -np.inf
            piece = vocabulary[scores.argmax()]
            if piece == self.special[3]:
                break
            outputs.append(piece)
        return outputs

    def our_order(self, rows):
        """The columns of log-probabilities in the order of our ids."""
        pieces = self.pieces[1]
        ordinary = [piece for piece in pieces if piece not in self.special]
        return rows[:, [pieces.index(piece) for piece in (*self.special, *ordinary)]]


def run_cells(cells, x, state):
    """Run a stack of cells on a vector; the state is a list with that of each cell."""
    after = []
    for cell, before in zip(cells, state, strict=True):
        now = cell(x, before)
        after.append(now)
        x = now[0] if isinstance(now, tuple) else now
    return x, after


def run_layers(rnn, x, state):
    """One step of a `torch.nn.GRU` or `torch.nn.LSTM` on a vector, with states like a stack's."""
    if isinstance(rnn, nn.LSTM):
        before = tuple(torch.stack(part) for part in zip(*state, strict=True))
    else:
        before = torch.stack(state)
    output, after = rnn(x[None], before)
    after = list(zip(*after, strict=True)) if isinstance(rnn, nn.LSTM) else list(after)
    return output[0], after


def final_states(rnn, after):
    """The final states of each layer of an encoder, with both directions concatenated."""
    directions = 2 if rnn.bidirectional else 1
    parts = after if isinstance(rnn, nn.LSTM) else [after]
    by_layer = [part.reshape(rnn.num_layers, directions * rnn.hidden_size) for part in parts]
    return list(zip(*by_layer, strict=True)) if isinstance(rnn, nn.LSTM) else list(by_layer[0])


def attend(scores, annotations):
    return torch.softmax(scores, -1) @ annotations


def sparsemax(scores):
    """The projection of scores `(Tx,)` onto the simplex (arXiv 1602.02068, algorithm 1)."""
    ranked = scores.sort(descending=True).values
    excess = ranked.cumsum(0) - 1
    count = (ranked * torch.arange(1, len(scores) + 1) > excess).sum()
    return (scores - excess[count - 1] / count).clamp(min=0)


RNN = {"gru": nn.GRU, "lstm": nn.LSTM}
CELL = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}


# --- JoeyNMT --------------------------------------------------------------------------------------


class Joey(TorchModel):
    special = ("<pad>", "<unk>", "<s>", "</s>")
    first = "<s>"
    pieces = (
        ["<unk>", "<pad>", "<s>", "</s>", *SOURCES],
        ["<unk>", "<pad>", "<s>", "</s>", *TARGETS],
    )

    def __init__(self, encoder, decoder, tied=False, seed=0):
        super().__init__()
        self.options = decoder
        embeddings = encoder["embeddings"], decoder["embeddings"]
        source_width, width = widths = [side["embedding_dim"] for side in embeddings]
        self.scales = [
            size**0.5 if side.get("scale") else 1.0
            for size, side in zip(widths, embeddings, strict=True)
        ]
        units, self.width = encoder["hidden_size"], decoder["hidden_size"]
        for side, pieces, size in zip(("src", "trg"), self.pieces, widths, strict=True):
            self.add_module(
                f"{side}_embed", nn.ModuleDict({"lut": nn.Embedding(len(pieces), size)})
            )
        self.encoder = nn.Module()
        layers = encoder.get("num_layers", 1)
        self.encoder.rnn = RNN[encoder["rnn_type"]](source_width, units, layers, bidirectional=True)
        part = self.decoder = nn.Module()
        self.layers = decoder.get("num_layers", 1)
        feeding = self.width if decoder.get("input_feeding", True) else 0
        part.rnn = RNN[decoder["rnn_type"]](width + feeding, self.width, self.layers)
        part.att_vector_layer = nn.Linear(self.width + 2 * units, self.width)
        part.output_layer = nn.Linear(self.width, len(self.pieces[1]), bias=False)
        part.attention = nn.Module()
        part.attention.key_layer = nn.Linear(2 * units, self.width, bias=False)
        if decoder["attention"] == "bahdanau":
            part.attention.query_layer = nn.Linear(self.width, self.width, bias=False)
            part.attention.energy_layer = nn.Linear(self.width, 1, bias=False)
        if decoder["init_hidden"] == "bridge":
            part.bridge_layer = nn.Linear(2 * units, self.width)
        randomize(self, seed)
        if tied:
            part.output_layer.weight = self.trg_embed["lut"].weight

    def start(self, ids):
        annotations, _ = self.encoder.rnn(self.src_embed["lut"](ids) * self.scales[0])
        half = annotations.shape[1] // 2
        final = torch.cat([annotations[-1, :half], annotations[0, half:]])
        kind = self.options["init_hidden"]
        if kind == "bridge":
            final = torch.tanh(self.decoder.bridge_layer(final))
        elif kind == "last":
            final = final[: self.width]
        else:
            final = torch.zeros(self.width)
        is_lstm = self.options["rnn_type"] == "lstm"
        return annotations, [(final, final) if is_lstm else final] * self.layers

    def step(self, token, state, feed, annotations):
        part, x = self.decoder, self.trg_embed["lut"](token) * self.scales[1]
        if self.options.get("input_feeding", True):
            x = torch.cat([x, feed])
        query, state = run_layers(part.rnn, x, state)
        keys = part.attention.key_layer(annotations)
        if self.options["attention"] == "bahdanau":
            hidden = torch.tanh(part.attention.query_layer(query) + keys)
            scores = part.attention.energy_layer(hidden)[:, 0]
        else:
            scores = keys @ query
        context = attend(scores, annotations)
        output = torch.tanh(part.att_vector_layer(torch.cat([query, context])))
        return part.output_layer(output), state, output

    def checkpoint(self):
        return {
            "steps": 10,
            "best_ckpt_score": np.float64(12.5),
            "model_state": self.state_dict(),
            "optimizer_state": {},
        }


# --- OpenNMT-py -----------------------------------------------------------------------------------


def embeddings(size, width):
    """An embedding under the name that OpenNMT-py gives it."""
    outer, inner = nn.Module(), nn.Module()
    inner.emb_luts = nn.ModuleList([nn.Embedding(size, width)])
    outer.make_embedding = inner
    return outer


def global_attention(kind, units):
    """The weights of an attention and its readout under the names that OpenNMT-py gives them."""
    part, is_mlp = nn.Module(), kind == "mlp"
    if kind == "general":
        part.linear_in = nn.Linear(units, units, bias=False)
    if is_mlp:
        part.linear_context = nn.Linear(units, units, bias=False)
        part.linear_query = nn.Linear(units, units)
        part.v = nn.Linear(units, 1, bias=False)
    part.linear_out = nn.Linear(2 * units, units, bias=is_mlp)
    return part


def attention_weights(part, kind, function, query, annotations):
    if kind == "mlp":
        hidden = part.linear_query(query) + part.linear_context(annotations)
        scores = part.v(torch.tanh(hidden))[:, 0]
    else:
        scores = annotations @ (part.linear_in(query) if kind == "general" else query)
    return sparsemax(scores) if function == "sparsemax" else torch.softmax(scores, -1)


class OpenNMT(TorchModel):
    special = ("<blank>", "<unk>", "<s>", "</s>")
    first = "<s>"
    ends_source = False
    pieces = (
        ["<unk>", "<blank>", "<s>", "</s>", *SOURCES],
        ["<unk>", "<blank>", "<s>", "</s>", *TARGETS],
    )

    def __init__(self, options, width=5, units=6, seed=0):
        super().__init__()
        self.options, self.width = options, units
        self.kind, self.layers = options["rnn_type"].lower(), options["enc_layers"]
        directions = 2 if options["encoder_type"] == "brnn" else 1
        self.encoder, self.decoder, self.generator = nn.Module(), nn.Module(), nn.Module()
        self.encoder.embeddings = embeddings(len(self.pieces[0]), width)
        self.encoder.rnn = RNN[self.kind](
            width, units // directions, self.layers, bidirectional=directions == 2
        )
        states = 2 if self.kind == "lstm" else 1
        if options["bridge"]:
            size = self.layers * units // directions
            self.encoder.bridge = nn.ModuleList([nn.Linear(size, size) for _ in range(states)])
        part = self.decoder
        part.embeddings = embeddings(len(self.pieces[1]), width)
        if options["input_feed"]:
            part.rnn = nn.Module()
            widths = [width + units, *[units] * (self.layers - 1)]
            part.rnn.layers = nn.ModuleList([CELL[self.kind](size, units) for size in widths])
        else:
            part.rnn = RNN[self.kind](width, units, self.layers)
        part.attn = global_attention(options["global_attention"], units)
        self.generator = nn.Linear(units, len(self.pieces[1]))
        randomize(self, seed)

    def start(self, ids):
        rnn = self.encoder.rnn
        annotations, after = rnn(self.encoder.embeddings.make_embedding.emb_luts[0](ids))
        if self.options["bridge"]:
            parts = after if self.kind == "lstm" else [after]
            parts = [
                torch.relu(linear(part.reshape(-1, linear.in_features))).reshape(part.shape)
                for linear, part in zip(self.encoder.bridge, parts, strict=True)
            ]
            after = tuple(parts) if self.kind == "lstm" else parts[0]
        return annotations, final_states(rnn, after)

    def step(self, token, state, feed, annotations):
        output, state, _ = self.decode(token, state, feed, annotations)
        return self.generator(output), state, output

    def decode(self, token, state, feed, annotations):
        """The output of the decoder, its state and the attention weights."""
        part, x = self.decoder, self.decoder.embeddings.make_embedding.emb_luts[0](token)
        if self.options["input_feed"]:
            query, state = run_cells(part.rnn.layers, torch.cat([x, feed]), state)
        else:
            query, state = run_layers(part.rnn, x, state)
        kind = self.options["global_attention"]
        function = self.options["global_attention_function"]
        weights = attention_weights(part.attn, kind, function, query, annotations)
        output = part.attn.linear_out(torch.cat([weights @ annotations, query]))
        return output if kind == "mlp" else torch.tanh(output), state, weights

    def checkpoint(self):
        state = self.state_dict()
        is_generator = {name: name.startswith("generator.") for name in state}
        return {
            "model": {name: w for name, w in state.items() if not is_generator[name]},
            "generator": self.generator.state_dict(),
            "vocab": {
                "src": self.pieces[0],
                "tgt": self.pieces[1],
                "data_task": "seq2seq",
                "decoder_start_token": "<s>",
            },
            "opt": argparse.Namespace(**self.options),
            "optim": {"training_step": 10},
        }


class CopyingOpenNMT(OpenNMT):
    """A model with copy_attn, which distributes over target pieces and other words of the source.

    The words "dog" and "a" are in both vocabularies, "zoo" only in that of the targets.
    """

    pieces = (OpenNMT.pieces[0], [*OpenNMT.pieces[1], "zoo", "dog", "a"])

    def __init__(self, options, seed=0):
        super().__init__(options)
        self.generator = nn.Module()
        self.generator.linear = nn.Linear(self.width, len(self.pieces[1]))
        self.generator.linear_copy = nn.Linear(self.width, 1)
        if not options["reuse_copy_attn"]:
            self.decoder.copy_attn = global_attention(options["copy_attn_type"], self.width)
        randomize(self, seed)

    def source_ids(self, words):
        known = self.pieces[0]
        return [known.index(word if word in known else "<unk>") for word in words]

    def vocabulary(self, words):
        return list(dict.fromkeys([*self.pieces[1], *words]))

    @torch.no_grad()
    def log_probs(self, words, outputs):
        annotations, state = self.start(torch.tensor(self.source_ids(words)))
        pieces, vocabulary = self.pieces[1], self.vocabulary(words)
        rows, output = [], torch.zeros(self.width)
        for word in [self.first, *outputs]:
            token = torch.tensor(pieces.index(word if word in pieces else "<unk>"))
            output, state, weights = self.decode(token, state, output, annotations)
            if not self.options["reuse_copy_attn"]:
                kind = self.options["copy_attn_type"]
                function = self.options["global_attention_function"]
                weights = attention_weights(
                    self.decoder.copy_attn, kind, function, output, annotations
                )
            logits = self.generator.linear(output)
            logits[pieces.index("<blank>")] = -torch.inf
            copying = torch.sigmoid(self.generator.linear_copy(output))
            p = torch.zeros(len(vocabulary))
            p[: len(pieces)] = (1 - copying) * torch.softmax(logits, -1)
            for source_word, weight in zip(words, weights, strict=True):
                p[vocabulary.index(source_word)] += copying[0] * weight
            rows.append(torch.log(p).numpy())
        return np.array(rows)

    def our_order(self, rows):
        return np.concatenate([super().our_order(rows), rows[:, len(self.pieces[1]) :]], axis=1)


# --- fairseq --------------------------------------------------------------------------------------


class Fairseq(TorchModel):
    special = ("<pad>", "<unk>", "<s>", "</s>")
    first = "</s>"
    pieces = (
        ["<s>", "<pad>", "</s>", "<unk>", *SOURCES],
        ["<s>", "<pad>", "</s>", "<unk>", *TARGETS],
    )

    def __init__(self, bidirectional, layers, projected, shared, widths=(5, 5), units=6, seed=0):
        super().__init__()
        self.width, self.shared = units, shared
        source_width, width = widths
        self.encoder, part = nn.Module(), nn.Module()
        self.encoder.embed_tokens = nn.Embedding(len(self.pieces[0]), source_width)
        encoder_units = units if bidirectional or not projected else units - 2
        self.encoder.lstm = nn.LSTM(
            source_width, encoder_units, layers, bidirectional=bidirectional
        )
        self.decoder = part
        states = encoder_units * (2 if bidirectional else 1)
        part.embed_tokens = nn.Embedding(len(self.pieces[1]), width)
        self.has_bridge = states != units
        if self.has_bridge:
            part.encoder_hidden_proj = nn.Linear(states, units)
            part.encoder_cell_proj = nn.Linear(states, units)
        widths = [width + units, *[units] * (layers - 1)]
        part.layers = nn.ModuleList([nn.LSTMCell(size, units) for size in widths])
        part.attention = nn.Module()
        part.attention.input_proj = nn.Linear(units, states, bias=False)
        part.attention.output_proj = nn.Linear(units + states, units, bias=False)
        if projected or (shared and width != units):
            part.additional_fc = nn.Linear(units, width)
        if not shared:
            part.fc_out = nn.Linear(width if projected else units, len(self.pieces[1]))
        randomize(self, seed)

    def start(self, ids):
        annotations, after = self.encoder.lstm(self.encoder.embed_tokens(ids))
        state = final_states(self.encoder.lstm, after)
        if self.has_bridge:
            part = self.decoder
            state = [(part.encoder_hidden_proj(h), part.encoder_cell_proj(c)) for h, c in state]
        return annotations, state

    def step(self, token, state, feed, annotations):
        part = self.decoder
        x = torch.cat([part.embed_tokens(token), feed])
        query, state = run_cells(part.layers, x, state)
        context = attend(annotations @ part.attention.input_proj(query), annotations)
        output = torch.tanh(part.attention.output_proj(torch.cat([context, query])))
        features = part.additional_fc(output) if hasattr(part, "additional_fc") else output
        if self.shared:
            return part.embed_tokens.weight @ features, state, output
        return part.fc_out(features), state, output

    def checkpoint(self):
        options = argparse.Namespace(_name="lstm", arch="lstm", decoder_attention="1")
        # With --eval-bleu fairseq stores counts of n-grams as arrays.
        counts = {"val": np.array([9, 7, 4, 2]), "sum": np.array([9, 7, 4, 2]), "count": 1}
        return {
            "args": None,
            "cfg": {"_name": None, "model": options},
            "model": self.state_dict(),
            "extra_state": {
                "metrics": [("valid", [(100, "_bleu_counts", "AverageMeter", counts)])]
            },
        }
