"""RNNsearch by hand in plain PyTorch: the baseline of the training benchmark.

This is the model of `RNNSearch(reset_after=True, initializer=None)`, written for this one purpose:
PyTorch's fused encoder, a loop over `GRUCell` with only the recurrence and the attention in it, and
one readout and vocabulary projection for all steps.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

PAD = 0


class PlainRNNSearch(nn.Module):
    """RNNsearch of arXiv 1409.0473, A.2, with all widths equal to `units`.

    Call arguments:
        source: `(B, Tx)` int64 ids, right-padded with 0.
        target: `(B, Ty)` int64 ids, the decoder's inputs.

    Returns:
        Logits `(B, Ty, vocabulary_size)`.
    """

    def __init__(self, vocabulary_size, units):
        super().__init__()
        self.source_embedding = nn.Embedding(vocabulary_size, units)
        self.target_embedding = nn.Embedding(vocabulary_size, units)
        self.encoder = nn.GRU(units, units, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(units, units)
        self.query = nn.Linear(units, units, bias=False)
        self.key = nn.Linear(2 * units, units)
        self.score = nn.Linear(units, 1, bias=False)
        self.cell = nn.GRUCell(units + 2 * units, units)
        self.readout = nn.Linear(units + units + 2 * units, 2 * units)
        self.output = nn.Linear(units, vocabulary_size)

    def forward(self, source, target):
        mask = source != PAD
        packed = pack_padded_sequence(
            self.source_embedding(source), mask.sum(1), batch_first=True, enforce_sorted=False
        )
        annotations, _ = pad_packed_sequence(
            self.encoder(packed)[0], batch_first=True, total_length=source.shape[1]
        )
        state = torch.tanh(self.bridge(annotations[:, 0].chunk(2, -1)[1]))  # the backward state
        keys, embedded = self.key(annotations), self.target_embedding(target)
        states, contexts = [], []
        for inputs in embedded.unbind(1):
            hidden = torch.tanh(self.query(state).unsqueeze(1) + keys)
            scores = self.score(hidden).squeeze(-1).masked_fill(~mask, -torch.inf)
            context = torch.bmm(scores.softmax(-1).unsqueeze(1), annotations).squeeze(1)
            states.append(state)
            contexts.append(context)
            state = self.cell(torch.cat([inputs, context], -1), state)
        readout = torch.cat([torch.stack(states, 1), embedded, torch.stack(contexts, 1)], -1)
        return self.output(self.readout(readout).unflatten(-1, (-1, 2)).amax(-1))


def train(model, optimizer, batches):
    """Take one optimizer step per `(source, target)` of `batches`; return the mean loss."""
    total = 0.0
    for source, target in batches:
        logits = model(source, target)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = total + loss.detach()
    return float(total) / len(batches)
