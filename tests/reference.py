"""The paper's equations (arXiv 1409.0473) in plain NumPy float64, one sequence at a time.

Nothing here is batched, masked by arithmetic or reordered for speed: what a mask drops is never
touched, and recurrences are Python loops. Weights come in Keras's layout, inputs in rows, so
`x @ W` stands for the paper's `W x`.
"""

import numpy as np


def float64(arrays):
    """Weights as `layer.get_weights()` returns them, in float64."""
    return [np.asarray(array, dtype="float64") for array in arrays]


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


# --- Attention: Eq. 5 and 6, A.1.2 ---------------------------------------------------------------


def masked_softmax(scores, mask):
    """Eq. 6 over the kept places of `(Tx,)` scores; all zeros if nothing is kept."""
    weights = np.zeros(len(scores))
    kept = np.flatnonzero(mask)
    if kept.size:
        exponentials = np.exp(scores[kept] - np.max(scores[kept]))
        weights[kept] = exponentials / exponentials.sum()
    return weights


def additive_scores(query, keys, mask, weights):
    """e_ij = v_a . tanh(W_a s + U_a h_j), A.1.2; `weights` is [W_a, U_a, v_a] or these and b."""
    w_a, u_a, v_a, *bias = weights
    scores = np.zeros(len(keys))
    for j in np.flatnonzero(mask):
        hidden = query @ w_a + keys[j] @ u_a + (bias[0] if bias else 0.0)
        scores[j] = np.tanh(hidden) @ v_a[:, 0]
    return scores


def expectation(weights, values):
    """c_i = sum_j a_ij h_j, Eq. 5, over the places that have weight."""
    context = np.zeros(values.shape[1])
    for j in np.flatnonzero(weights):
        context += weights[j] * values[j]
    return context


def additive_attention(query, values, mask, weights, keys=None):
    """Context `(D,)` and weights `(Tx,)` of one query `(N,)` over one source `(Tx, D)`."""
    scores = additive_scores(query, values if keys is None else keys, mask, weights)
    alignment = masked_softmax(scores, mask)
    return expectation(alignment, values), alignment


def fixed_context(values, mask, width=None):
    """Section 2.1: the last kept annotation, its first `width` features, and where it stood."""
    alignment = np.zeros(len(values))
    kept = np.flatnonzero(mask)
    if not kept.size:
        return np.zeros(values[:, :width].shape[1]), alignment
    alignment[kept[-1]] = 1.0
    return values[kept[-1], :width], alignment


# --- Recurrent steps: A.1.1, A.2.1 ---------------------------------------------------------------


def gru_step(x, state, weights, reset_after):
    """One gated step, A.1.1: `(M,)` and [h] to [h].

    Keras keeps the gates in the order z, r, g, and its z weighs the old state. With `reset_after`
    the recurrent product has its own bias and the reset gate acts on its result; without, the
    gate acts on the state first, as the paper writes.
    """
    kernel, recurrent, bias = weights
    (h,) = state
    n = len(h)
    input_bias, state_bias = bias if reset_after else (bias, np.zeros(3 * n))
    from_input = x @ kernel + input_bias
    gates = sigmoid(
        from_input[: 2 * n] + h @ recurrent[:, : 2 * n] + state_bias[: 2 * n]  # (2n,)
    )
    z, r = gates[:n], gates[n:]
    if reset_after:
        from_state = r * (h @ recurrent[:, 2 * n :] + state_bias[2 * n :])
    else:
        from_state = (r * h) @ recurrent[:, 2 * n :]
    g = np.tanh(from_input[2 * n :] + from_state)
    return [z * h + (1.0 - z) * g]


def lstm_step(x, state, weights):
    """One step of long short-term memory: `(M,)` and [h, c] to [h, c]; Keras's order i, f, g, o."""
    kernel, recurrent, bias = weights
    h, c = state
    i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(c), c]


def stacked_step(x, state, steps):
    """Cells on each other: each reads the output below; `state` is one flat list."""
    state, after = list(state), []
    for step, count in steps:
        own, state = state[:count], state[count:]
        own = step(x, own)
        after += own
        x = own[0]
    return after


# --- Encoder: section 3.2, A.2.1 -----------------------------------------------------------------


def run(inputs, step, zero_state):
    """The outputs `(T, n)` of a recurrence over `(T, M)` inputs."""
    state, outputs = zero_state, []
    for x in inputs:
        state = step(x, state)
        outputs.append(state[0])
    return np.array(outputs)


def bidirectional(inputs, length, forward, backward, zero_state):
    """h_j = [forward h_j ; backward h_j] for j < length; zeros at the padding."""
    units = len(zero_state[0])
    annotations = np.zeros((len(inputs), 2 * units))
    if length:
        read = inputs[:length]
        annotations[:length, :units] = run(read, forward, zero_state)
        annotations[:length, units:] = run(read[::-1], backward, zero_state)[::-1]
    return annotations


def encoder(inputs, lengths, layers, zero_state, residual=False):
    """Annotations `(B, Tx, 2n)`; `layers` holds a (forward, backward) pair of steps for each."""
    rows = []
    for row, length in zip(inputs, lengths, strict=True):
        for depth, (forward, backward) in enumerate(layers):
            above = bidirectional(row, length, forward, backward, zero_state)
            row = row + above if residual and depth else above
        rows.append(row)
    return np.array(rows)


# --- From encoder to decoder, and the output: A.2.2 ----------------------------------------------


def bridge(annotations, length, source, kernel, bias):
    """s_0 = tanh(W_s summary); the paper's summary is the backward state at the first word."""
    half = annotations.shape[1] // 2
    width = half if source == "backward_first" else 2 * half
    if length == 0:
        summary = np.zeros(width)
    elif source == "backward_first":
        summary = annotations[0, half:]
    elif source == "last":
        summary = annotations[length - 1]
    else:
        summary = annotations[:length].mean(axis=0)
    return np.tanh(summary @ kernel + bias)


def deep_output(state, inputs, context, weights, activation=None):
    """t~ = U_o s + V_o E y + C_o c, then the larger of each neighbouring pair, or an activation."""
    kernel, bias = weights
    n, m = len(state), len(inputs)
    u_o, v_o, c_o = kernel[:n], kernel[n : n + m], kernel[n + m :]
    hidden = state @ u_o + inputs @ v_o + context @ c_o + bias
    if activation is not None:
        return activation(hidden)
    return np.array([max(hidden[2 * j], hidden[2 * j + 1]) for j in range(len(hidden) // 2)])


# --- Decoder: A.2.2 ------------------------------------------------------------------------------


def decode(inputs, state, attend, move, readout, query, readout_state, top=0):
    """The whole attentive decoder over one sequence.

    Args:
        inputs: `(Ty, M)` embedded previous outputs E y_{i-1}.
        state: List of the cell's first state vectors.
        attend: `(N,)` query -> context `(D,)`, weights `(Tx,)`.
        move: input, state -> state; one step of the cell.
        readout: s, E y, c -> output; or `None` for the state itself.
        query: Whether s_{i-1} ("previous", A.2.2) or s_i ("current") asks.
        readout_state: Whether s_{i-1} ("previous", A.2.2) or s_i ("current", 3.1) is read out.
        top: Which of the state vectors is s_i.

    Returns:
        Outputs `(Ty, R)`, weights `(Ty, Tx)`, and the last state.
    """
    outputs, alignments = [], []
    for x in inputs:
        before = state[top]
        if query == "previous":
            context, weights = attend(before)
            state = move(np.concatenate([x, context]), state)
        else:
            state = move(x, state)
            context, weights = attend(state[top])
        read = before if readout_state == "previous" else state[top]
        outputs.append(read if readout is None else readout(read, x, context))
        alignments.append(weights)
    return np.array(outputs), np.array(alignments), state
