"""The paper's equations (arXiv 1409.0473) in plain NumPy float64, one sequence at a time.

Nothing here is batched, masked by arithmetic or reordered for speed: masked positions are never
read, and recurrences are Python loops. Weights have Keras's layout and inputs are rows, so `x @ W`
is the paper's `W x`.
"""

import numpy as np


def float64(arrays):
    """Weights as `layer.get_weights()` returns them, in float64."""
    return [np.asarray(array, dtype="float64") for array in arrays]


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


# --- Attention: Eq. 5 and 6, A.1.2 ---------------------------------------------------------------


def masked_softmax(scores, mask):
    """Eq. 6 over the unmasked positions of `(Tx,)` scores; all zeros if there are none."""
    weights = np.zeros(len(scores))
    positions = np.flatnonzero(mask)
    if positions.size:
        exponentials = np.exp(scores[positions] - np.max(scores[positions]))
        weights[positions] = exponentials / exponentials.sum()
    return weights


def additive_scores(query, keys, mask, weights):
    """e_ij = v_a . tanh(W_a s + U_a h_j), A.1.2; `weights` is [W_a, U_a, v_a] or has b, too."""
    w_a, u_a, v_a, *bias = weights
    scores = np.zeros(len(keys))
    for j in np.flatnonzero(mask):
        hidden = query @ w_a + keys[j] @ u_a + (bias[0] if bias else 0.0)
        scores[j] = np.tanh(hidden) @ v_a[:, 0]
    return scores


def expectation(weights, values):
    """c_i = sum_j a_ij h_j, Eq. 5, over the positions with a weight."""
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
    """Section 2.1: the first `width` features of the last unmasked annotation, and its weight 1."""
    alignment = np.zeros(len(values))
    positions = np.flatnonzero(mask)
    if not positions.size:
        return np.zeros(values[:, :width].shape[1]), alignment
    alignment[positions[-1]] = 1.0
    return values[positions[-1], :width], alignment


# --- Recurrent steps: A.1.1, A.2.1 ---------------------------------------------------------------


def simple_step(x, state, weights):
    """h' = tanh(W x + U h + b): `(M,)` and [h] to [h]."""
    kernel, recurrent, bias = weights
    return [np.tanh(x @ kernel + state[0] @ recurrent + bias)]


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


def cell_move(x, state, step):
    """A step as a move: input, state -> output, state. A cell's output is its first state."""
    state = step(x, state)
    return state[0], state


def residual_move(x, state, move):
    """A move whose input is added to its output, not to its state (arXiv 1609.08144, Eq. 6)."""
    output, state = move(x, state)
    return x + output, state


def stacked_move(x, state, moves):
    """A stack of moves: each reads the output below. `state` is one flat list.

    `moves` holds (move, number of its states) from the bottom to the top.
    """
    state, after = list(state), []
    for move, count in moves:
        own, state = state[:count], state[count:]
        x, own = move(x, own)
        after += own
    return x, after


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
    elif source == "ends":
        summary = np.concatenate([annotations[length - 1, :half], annotations[0, half:]])
    else:
        summary = annotations[:length].mean(axis=0)
    return np.tanh(summary @ kernel + bias)


def deep_output(state, inputs, context, weights, activation=None, reads_inputs=True):
    """t~ = U_o s + V_o E y + C_o c, then the larger of each neighbouring pair, or an activation.

    Without `reads_inputs` there is no V_o E y: with tanh this is arXiv 1508.04025, Eq. 5.
    """
    kernel, bias = weights
    inputs = inputs if reads_inputs else inputs[:0]
    n, m = len(state), len(inputs)
    u_o, v_o, c_o = kernel[:n], kernel[n : n + m], kernel[n + m :]
    hidden = state @ u_o + inputs @ v_o + context @ c_o + bias
    if activation is not None:
        return activation(hidden)
    return np.array([max(hidden[2 * j], hidden[2 * j + 1]) for j in range(len(hidden) // 2)])


# --- Decoder: A.2.2 ------------------------------------------------------------------------------


def decode(
    inputs,
    state,
    attend,
    move,
    readout,
    query,
    readout_state,
    top=0,
    context_move=None,
    input_feeding=0,
):
    """The whole attentive decoder over one sequence.

    Args:
        inputs: `(Ty, M)` embedded previous outputs E y_{i-1}.
        state: List of the cell's first state vectors.
        attend: `(N,)` query -> context `(D,)`, weights `(Tx,)`.
        move: input, state -> output, state; one step of the cell.
        readout: s, E y, c -> output; or `None` for the output of the cell.
        query: Whether the query is s_{i-1} ("previous", A.2.2) or s_i ("current").
        readout_state: Whether the readout gets s_{i-1} ("previous", A.2.2) or s_i ("current", 3.1).
        top: Which of the state vectors is s_{i-1}.
        context_move: Like `move`, for a cell that reads only the context; or `None`.
        input_feeding: Width of the outputs if the cell reads the last one, else 0.

    Returns:
        Outputs `(Ty, R)`, weights `(Ty, Tx)`, and the last state.
    """
    outputs, alignments, last = [], [], np.zeros(input_feeding)
    for x in inputs:
        before = state[top]
        fed = np.concatenate([x, last])
        if query == "previous":
            context, weights = attend(before)
            after, state = move(np.concatenate([fed, context]), state)
        else:
            after, state = move(fed, state)
            context, weights = attend(after)
            if context_move is not None:
                after, state = context_move(context, state)
        read = before if readout_state == "previous" else after
        outputs.append(read if readout is None else readout(read, x, context))
        last = outputs[-1] if input_feeding else last
        alignments.append(weights)
    return np.array(outputs), np.array(alignments), state


# --- The attention family -------------------------------------------------------------------------
#
# Each function takes all queries `(Tq, N)` of one source `(Tx, D)` in order. It returns contexts
# `(Tq, D)` and weights `(Tq, Tx)`, or `(H, Tq, Tx)` with several heads. `weights` has arrays by
# variable name.


def weights_by_name(layer):
    """Weights of a layer in float64, by the last part of their path."""
    values = float64(layer.get_weights())
    names = [variable.path.split("/")[-1] for variable in layer.weights]
    return dict(zip(names, values, strict=True))


def sparsemax(scores, mask):
    """The point of the simplex nearest to the scores, by bisection of sum max(e - tau, 0) = 1."""
    weights = np.zeros(len(scores))
    positions = np.flatnonzero(mask)
    if positions.size:
        unmasked = scores[positions]
        low, high = np.min(unmasked) - 1.0, np.max(unmasked)
        for _ in range(200):
            tau = (low + high) / 2
            low, high = (tau, high) if np.maximum(unmasked - tau, 0).sum() > 1 else (low, tau)
        weights[positions] = np.maximum(unmasked - tau, 0)
    return weights


def head_scores(query, keys, mask, weights, heads=1, features=None):
    """e_hj = v_h . tanh(W_a s + U_a h_j + f_j + b), `(H, Tx)`; a gain makes v_h g_h v_h / |v_h|."""
    size = weights["score_kernel"].shape[0] // heads
    scores = np.zeros((heads, len(keys)))
    for j in np.flatnonzero(mask):
        hidden = query @ weights["query_kernel"] + keys[j] @ weights["key_kernel"]
        hidden += weights.get("bias", 0.0) + (0.0 if features is None else features[j])
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            v = weights["score_kernel"][part, 0]
            if "gain" in weights:
                v = weights["gain"][h] * v / np.sqrt((v**2).sum())
            scores[h, j] = v @ np.tanh(hidden[part])
    return scores


def head_contexts(alignments, values, weights):
    """Each head's expectation over its features of W_v h_j, concatenated."""
    if len(alignments) == 1:
        return expectation(alignments[0], values)
    projected = np.split(values @ weights["value_kernel"], len(alignments), axis=1)
    return np.concatenate([expectation(a, v) for a, v in zip(alignments, projected, strict=True)])


def bahdanau(weights, queries, values, mask, keys=None, heads=1, normalizer=masked_softmax):
    """Additive attention with heads, weight normalization and either normalizer."""
    values = np.where(mask[:, None], values, 0.0)
    keys = values if keys is None else keys
    contexts, alignments = [], []
    for query in queries:
        scores = head_scores(query, keys, mask, weights, heads)
        alignments.append([normalizer(row, mask) for row in scores])
        contexts.append(head_contexts(alignments[-1], values, weights))
    alignments = np.array(alignments).transpose(1, 0, 2)
    return np.array(contexts), alignments[0] if heads == 1 else alignments


def luong_scores(query, keys, mask, weights, score, scale=1.0):
    """arXiv 1508.04025, section 3.1: dot, general and concat."""
    scores = np.zeros(len(keys))
    for j in np.flatnonzero(mask):
        if score == "dot":
            scores[j] = query @ keys[j]
        elif score == "general":
            scores[j] = query @ (keys[j] @ weights["key_kernel"])
        else:
            hidden = query @ weights["query_kernel"] + keys[j] @ weights["key_kernel"]
            scores[j] = weights["score_kernel"][:, 0] @ np.tanh(hidden)
    return scores * weights.get("scale", scale)


def luong(weights, queries, values, mask, score, scale=1.0):
    alignments = np.array(
        [
            masked_softmax(luong_scores(q, values, mask, weights, score, scale), mask)
            for q in queries
        ]
    )
    return np.array([expectation(a, values) for a in alignments]), alignments


def convolve_positions(signal, kernel):
    """`(Tx, C)` and `(K, C, F)` to `(Tx, F)`; the position itself has index (K - 1) // 2."""
    size, positions = len(kernel), len(signal)
    features = np.zeros((positions, kernel.shape[2]))
    for j in range(positions):
        for k in range(size):
            at = j + k - (size - 1) // 2
            if 0 <= at < positions:
                features[j] += signal[at] @ kernel[k]
    return features


def location(weights, queries, values, mask, heads=1):
    """arXiv 1506.07503, Eq. 8 and 9, over the last weights, and their sum if filters read both."""
    last = total = np.zeros(len(values))
    contexts, alignments = [], []
    for query in queries:
        signal = np.stack([last, total], 1)[:, : weights["location_filters"].shape[1]]
        features = (
            convolve_positions(signal, weights["location_filters"]) @ weights["location_kernel"]
        )
        scores = head_scores(query, values, mask, weights, heads, features)
        parts = [masked_softmax(row, mask) for row in scores]
        last = np.mean(parts, axis=0)
        total = total + last
        contexts.append(head_contexts(parts, np.where(mask[:, None], values, 0.0), weights))
        alignments.append(last)
    return np.array(contexts), np.array(alignments)


def coverage(weights, queries, values, mask, fertility=None):
    """arXiv 1704.04368, Eq. 10-13; with a fertility also arXiv 1601.04811, section 3.1.1."""
    covered = np.zeros(len(values))
    contexts, alignments = [], []
    for query in queries:
        features = np.outer(covered, weights["coverage_kernel"][0])
        scores = head_scores(query, values, mask, weights, 1, features)[0]
        alignment = masked_softmax(scores, mask)
        for j in np.flatnonzero(mask):
            share = 1.0
            if fertility is not None:
                share = fertility * sigmoid(values[j] @ weights["fertility_kernel"][:, 0])
            covered[j] += alignment[j] / share
        contexts.append(expectation(alignment, values))
        alignments.append(alignment)
    return np.array(contexts), np.array(alignments)


def expected_choice(choose, before):
    """arXiv 1704.00784, Eq. 9: mass moves right from each start; each position takes a share."""
    alignment = np.zeros(len(choose))
    for start, mass in enumerate(before):
        for j in range(start, len(choose)):
            alignment[j] += mass * choose[j]
            mass = mass * (1.0 - choose[j])
    return alignment


def monotonic(weights, queries, values, mask, scores, hard=False):
    """Expected alignments, or Algorithm 1; `scores` is `(query, keys, mask, weights) -> (Tx,)`."""
    alignment = np.eye(1, len(values))[0]
    contexts, alignments = [], []
    for query in queries:
        choose = sigmoid(scores(query, values, mask, weights) + weights["score_bias"]) * mask
        choose = (choose > 0.5).astype(float) if hard else choose
        alignment = expected_choice(choose, alignment)
        contexts.append(expectation(alignment, values))
        alignments.append(alignment)
    return np.array(contexts), np.array(alignments)


# --- Cells: layer normalization (arXiv 1607.06450) ------------------------------------------------


def layer_norm(x, gain, bias, epsilon):
    """LN(a; gain, b), Eq. 4 of the paper, with epsilon in the variance."""
    mean = x.sum() / len(x)
    variance = ((x - mean) ** 2).sum() / len(x)
    return gain * (x - mean) / np.sqrt(variance + epsilon) + bias


def layer_norm_gru_step(x, state, weights, reset_after, epsilon, mask=1.0):
    """Eq. 22-24 with Keras's gates z, r, g, where z weighs the old state; `weights` by name.

    The `mask` is the dropout mask of the recurrent state.
    """
    (h,) = state
    n = len(h)
    bias = weights.get("bias", np.zeros(3 * n))
    input_bias, state_bias = bias if bias.ndim == 2 else (bias, np.zeros(3 * n))
    gates, new = slice(2 * n), slice(2 * n, 3 * n)

    def from_input(part):
        product = x @ weights["kernel"][:, part]
        return layer_norm(product, weights["input_gain"][part], input_bias[part], epsilon)

    def from_state(h, part):
        product = h @ weights["recurrent_kernel"][:, part]
        return layer_norm(product, weights["recurrent_gain"][part], state_bias[part], epsilon)

    z, r = np.split(sigmoid(from_input(gates) + from_state(h * mask, gates)), 2)
    recurrent = r * from_state(h * mask, new) if reset_after else from_state(r * h * mask, new)
    return [z * h + (1.0 - z) * np.tanh(from_input(new) + recurrent)]


def layer_norm_lstm_step(x, state, weights, epsilon, mask=1.0):
    """Eq. 20-22 with Keras's gates i, f, g, o; `weights` by name."""
    h, c = state
    n = len(h)
    gates = weights.get("bias", np.zeros(4 * n))
    gates = gates + layer_norm(x @ weights["kernel"], weights["input_gain"], 0.0, epsilon)
    gates = gates + layer_norm(
        (h * mask) @ weights["recurrent_kernel"], weights["recurrent_gain"], 0.0, epsilon
    )
    i, f, g, o = np.split(gates, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    normalized = layer_norm(c, weights["cell_gain"], weights.get("cell_bias", 0.0), epsilon)
    return [sigmoid(o) * np.tanh(normalized), c]


# --- The whole model, line by line: appendix A ----------------------------------------------------


def paper_gru(x, h, p):
    """A.2.1 as in the paper: z weighs the new state, r resets before the product."""
    z = sigmoid(x @ p["W_z"] + h @ p["U_z"] + p["b_z"])
    r = sigmoid(x @ p["W_r"] + h @ p["U_r"] + p["b_r"])
    g = np.tanh(x @ p["W"] + (r * h) @ p["U"] + p["b"])
    return (1.0 - z) * h + z * g


def rnn_search(source, target, p, fixed, readout_state):
    """Logits `(Ty, V)` of one sentence pair; A.2.2 and, with `fixed`, section 2.1 (RNNencdec).

    Args:
        source: `(Tx,)` ids.
        target: `(Ty,)` ids, those before each output.
        p: Weights by the paper's names. The decoder's W, W_z and W_r hold C, C_z and C_r below
            them, for inputs [E y ; c].
        fixed: Whether c is the last forward state.
        readout_state: Whether the readout gets s_{i-1} ("previous", A.2.2) or s_i ("current", 3.1).
    """
    words = p["E_x"][source]
    state = np.zeros(len(p["W_s"]))
    forward = run(words, lambda x, h: [paper_gru(x, h[0], p["forward"])], [state])
    backward = run(words[::-1], lambda x, h: [paper_gru(x, h[0], p["backward"])], [state])[::-1]
    annotations = np.concatenate([forward, backward], axis=1)
    s = np.tanh(backward[0] @ p["W_s"] + p["b_s"])
    logits = []
    for embedded in p["E_y"][target]:
        if fixed:
            c = forward[-1]
        else:
            e = [p["v_a"] @ np.tanh(s @ p["W_a"] + h @ p["U_a"] + p["b_a"]) for h in annotations]
            c = np.exp(e) / np.exp(e).sum() @ annotations
        after = paper_gru(np.concatenate([embedded, c]), s, p["decoder"])
        read = s if readout_state == "previous" else after
        t = read @ p["U_o"] + embedded @ p["V_o"] + c @ p["C_o"] + p["b_o"]
        t = np.array([max(t[2 * j], t[2 * j + 1]) for j in range(len(t) // 2)])
        logits.append(t @ p["W_o"] + p["b_y"])
        s = after
    return np.array(logits)


def pointer_generator(logits, features, weights, ids, kernel, bias):
    """Log-probabilities of a mixture of the vocabulary `(V,)` and copied ids, for each step.

    `ids` are the target ids of the source tokens, 0 where nothing can be copied.
    """
    gate = sigmoid(features @ kernel + bias)  # (Ty, 1)
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities = gate * exponentials / exponentials.sum(axis=-1, keepdims=True)
    for j in np.flatnonzero(ids):
        probabilities[:, ids[j]] += (1.0 - gate[:, 0]) * weights[:, j]
    return np.log(probabilities / probabilities.sum(axis=-1, keepdims=True))


def token_losses(labels, logits, smoothing):
    """`-(1 - s) log p(y_i) - s / V sum_v log p(v)`, zero where the label is padding."""
    logits = np.asarray(logits, "float64")
    log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    label_log_probs = np.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    losses = -(1 - smoothing) * label_log_probs - smoothing * log_probs.mean(axis=-1)
    return losses * (labels != 0)


def alignment_losses(links, weights):
    """`-sum_j A_ij log a_ij` of each token in float64, zero for rows of `A` without links."""
    losses = np.zeros(links.shape[:2])
    for i in np.ndindex(losses.shape):
        for j in np.flatnonzero(links[i]):
            share = links[i][j] / links[i].sum()
            losses[i] -= share * np.log(np.float64(weights[i][j]))
    return losses
