"""Cells of LSTM and GRU. Rows are contiguous, and a program computes one block of values."""

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    """Return tanh(x), without overflow for large |x|."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _load_sum(first, second, place, used):
    """Return the sum of two tensors at these places."""
    return tl.load(first + place, mask=used, other=0.0) + tl.load(
        second + place, mask=used, other=0.0
    )


@triton.jit
def lstm_step_kernel(
    from_input,
    from_hidden,
    cell,
    new_hidden,
    new_cell,
    activations,
    size,
    W,
    BLOCK: tl.constexpr,
):
    """Compute one step of an LSTM for `size` values of (rows, W).

    Args:
        from_input: Products of the inputs, (rows, 4 W) in the order of torch's gates.
        from_hidden: Products of the hidden states, (rows, 4 W).
        cell: Cell states before the step, (rows, W).
        new_hidden: Receives the hidden states, (rows, W).
        new_cell: Receives the cell states, (rows, W).
        activations: Receives the gates for the gradient, (rows, 4 W).
        size: Number of values, rows times W.
        W: Width of a state.
        BLOCK: Values of one program.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    used = place < size
    gate = place // W * 4 * W + place % W
    enter = tl.sigmoid(_load_sum(from_input, from_hidden, gate, used))
    forget = tl.sigmoid(_load_sum(from_input, from_hidden, gate + W, used))
    candidate = _tanh(_load_sum(from_input, from_hidden, gate + 2 * W, used))
    leave = tl.sigmoid(_load_sum(from_input, from_hidden, gate + 3 * W, used))
    value = forget * tl.load(cell + place, mask=used, other=0.0) + enter * candidate
    tl.store(new_cell + place, value, mask=used)
    tl.store(new_hidden + place, leave * _tanh(value), mask=used)
    tl.store(activations + gate, enter, mask=used)
    tl.store(activations + gate + W, forget, mask=used)
    tl.store(activations + gate + 2 * W, candidate, mask=used)
    tl.store(activations + gate + 3 * W, leave, mask=used)


@triton.jit
def lstm_gradient_kernel(
    activations,
    cell,
    new_cell,
    d_hidden,
    d_cell,
    d_gates,
    d_before,
    size,
    W,
    BLOCK: tl.constexpr,
):
    """Compute the gradient of one step of an LSTM for `size` values of (rows, W).

    Args:
        activations: Gates that the step has kept, (rows, 4 W).
        cell: Cell states before the step, (rows, W).
        new_cell: Cell states after it.
        d_hidden: Gradient of the hidden states after it.
        d_cell: Gradient of the cell states after it.
        d_gates: Receives the gradient of the products, (rows, 4 W).
        d_before: Receives the gradient of the cell states before the step.
        size: Number of values, rows times W.
        W: Width of a state.
        BLOCK: Values of one program.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    used = place < size
    gate = place // W * 4 * W + place % W
    enter = tl.load(activations + gate, mask=used, other=0.0)
    forget = tl.load(activations + gate + W, mask=used, other=0.0)
    candidate = tl.load(activations + gate + 2 * W, mask=used, other=0.0)
    leave = tl.load(activations + gate + 3 * W, mask=used, other=0.0)
    squashed = _tanh(tl.load(new_cell + place, mask=used, other=0.0))
    from_hidden = tl.load(d_hidden + place, mask=used, other=0.0)
    total = tl.load(d_cell + place, mask=used, other=0.0)
    total += from_hidden * leave * (1 - squashed * squashed)
    before = tl.load(cell + place, mask=used, other=0.0)
    tl.store(d_gates + gate, total * candidate * enter * (1 - enter), mask=used)
    tl.store(d_gates + gate + W, total * before * forget * (1 - forget), mask=used)
    tl.store(d_gates + gate + 2 * W, total * enter * (1 - candidate * candidate), mask=used)
    tl.store(d_gates + gate + 3 * W, from_hidden * squashed * leave * (1 - leave), mask=used)
    tl.store(d_before + place, total * forget, mask=used)


@triton.jit
def gru_step_kernel(
    from_input, from_hidden, hidden, new_hidden, activations, size, W, BLOCK: tl.constexpr
):
    """Compute one step of a GRU for `size` values of (rows, W).

    Args:
        from_input: Products of the inputs, (rows, 3 W) in the order of torch's gates.
        from_hidden: Products of the hidden states, (rows, 3 W).
        hidden: Hidden states before the step, (rows, W).
        new_hidden: Receives the hidden states, (rows, W).
        activations: Receives what the gradient needs, (rows, 4 W).
        size: Number of values, rows times W.
        W: Width of a state.
        BLOCK: Values of one program.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    used = place < size
    product = place // W * 3 * W + place % W
    reset = tl.sigmoid(_load_sum(from_input, from_hidden, product, used))
    update = tl.sigmoid(_load_sum(from_input, from_hidden, product + W, used))
    candidate_hidden = tl.load(from_hidden + product + 2 * W, mask=used, other=0.0)
    candidate_input = tl.load(from_input + product + 2 * W, mask=used, other=0.0)
    candidate = _tanh(candidate_input + reset * candidate_hidden)
    before = tl.load(hidden + place, mask=used, other=0.0)
    tl.store(new_hidden + place, candidate + update * (before - candidate), mask=used)
    kept = place // W * 4 * W + place % W
    tl.store(activations + kept, reset, mask=used)
    tl.store(activations + kept + W, update, mask=used)
    tl.store(activations + kept + 2 * W, candidate, mask=used)
    tl.store(activations + kept + 3 * W, candidate_hidden, mask=used)


@triton.jit
def gru_gradient_kernel(
    activations,
    hidden,
    d_hidden,
    d_input,
    d_from_hidden,
    d_before,
    size,
    W,
    BLOCK: tl.constexpr,
):
    """Compute the gradient of one step of a GRU for `size` values of (rows, W).

    Args:
        activations: Values that the step has kept, (rows, 4 W).
        hidden: Hidden states before the step, (rows, W).
        d_hidden: Gradient of the hidden states after it.
        d_input: Receives the gradient of the products of the inputs, (rows, 3 W).
        d_from_hidden: Receives that of the products of the hidden states, (rows, 3 W).
        d_before: Receives that of the hidden states before the step.
        size: Number of values, rows times W.
        W: Width of a state.
        BLOCK: Values of one program.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    used = place < size
    kept = place // W * 4 * W + place % W
    reset = tl.load(activations + kept, mask=used, other=0.0)
    update = tl.load(activations + kept + W, mask=used, other=0.0)
    candidate = tl.load(activations + kept + 2 * W, mask=used, other=0.0)
    candidate_hidden = tl.load(activations + kept + 3 * W, mask=used, other=0.0)
    gradient = tl.load(d_hidden + place, mask=used, other=0.0)
    before = tl.load(hidden + place, mask=used, other=0.0)
    d_candidate = gradient * (1 - update) * (1 - candidate * candidate)
    d_update = gradient * (before - candidate) * update * (1 - update)
    d_reset = d_candidate * candidate_hidden * reset * (1 - reset)
    product = place // W * 3 * W + place % W
    tl.store(d_input + product, d_reset, mask=used)
    tl.store(d_input + product + W, d_update, mask=used)
    tl.store(d_input + product + 2 * W, d_candidate, mask=used)
    tl.store(d_from_hidden + product, d_reset, mask=used)
    tl.store(d_from_hidden + product + W, d_update, mask=used)
    tl.store(d_from_hidden + product + 2 * W, d_candidate * reset, mask=used)
    tl.store(d_before + place, gradient * update, mask=used)
