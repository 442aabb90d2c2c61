"""Codes and factors whose scores by public implementations are in `metrics/references.json`."""

import numpy as np

GRID = np.stack(np.meshgrid(*map(np.arange, (3, 4, 6)), indexing="ij"), -1).reshape(-1, 3)
FACTORS = np.tile(GRID, (20, 1))  # 1,440 examples
ROTATION = np.linalg.qr(np.random.default_rng(7).normal(size=(5, 5)))[0]


def code_cases():
    """Return codes by name, (examples, latents); they are continuous but for `quantised`."""
    rng = np.random.default_rng(0)
    scaled = (FACTORS - FACTORS.mean(0)) / FACTORS.std(0)
    noise = rng.normal(size=(4, len(FACTORS), 5))
    wide = np.hstack([scaled, noise[0, :, :2]])
    return {
        "random": noise[1],
        "noisy": wide + 0.6 * noise[2],
        "rotated": (np.hstack([scaled, 0.3 * noise[0, :, :2]]) + 0.05 * noise[3]) @ ROTATION,
        "narrow": wide * [1, 1, 1, 0.01, 0.02] + 0.3 * noise[2] * [1, 1, 1, 0.01, 0.02],
        "quantised": np.round(wide + 0.5 * noise[2]),
    }


def model_cases():
    """Return codes of four models on the same examples, and the KL of their latents."""
    rng = np.random.default_rng(1)
    scaled = (FACTORS - FACTORS.mean(0)) / FACTORS.std(0)
    wide = np.hstack([scaled, np.zeros((len(scaled), 2))])
    mixings = [np.eye(5), np.eye(5)[[2, 0, 1, 4, 3]] * [1, -1, 1, 1, 1], ROTATION, ROTATION.T]
    codes = [wide @ mixing + 0.2 * rng.normal(size=wide.shape) for mixing in mixings]
    kl = [2.0 * codes_of.var(0) for codes_of in codes]
    kl[0][3] = kl[1][4] = 0.001  # unused
    return codes, kl


def feature_cases():
    """Return pairs of feature sets by name: (real, generated)."""
    rng = np.random.default_rng(2)
    near, far = rng.normal(size=(2, 400, 16))
    few = rng.normal(size=(150, 16))
    modes = rng.integers(0, 3, (300, 1)) * 4.0
    return {
        "same law": (near, far),
        "shifted": (near, far + 0.7),
        "narrow": (near, 0.5 * far),
        "fewer": (near, few),
        "one mode": (modes + 0.5 * rng.normal(size=(300, 16)), 0.5 * rng.normal(size=(250, 16))),
    }


DINOV2_KINDS = {"plain": {}, "gated": {"gated": True}, "registers": {"registers": 4}}


def dinov2_weights(width=64, blocks=2, gated=False, registers=0):
    """Return random tensors with the names and shapes of a published file, of a small network."""
    hidden = 4 * width
    feed = {"mlp.w12": (2 * hidden, width), "mlp.w3": (width, hidden)}
    feed = feed if gated else {"mlp.fc1": (hidden, width), "mlp.fc2": (width, hidden)}
    layers = {"attn.qkv": (3 * width, width), "attn.proj": (width, width), **feed}
    shapes = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 1 + 37 * 37, width),
        "mask_token": (1, width),
        "patch_embed.proj.weight": (width, 3, 14, 14),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    if registers:
        shapes["register_tokens"] = (1, registers, width)
    for n in range(blocks):
        for name, shape in layers.items():
            shapes |= {f"blocks.{n}.{name}.weight": shape, f"blocks.{n}.{name}.bias": shape[:1]}
        for k in (1, 2):
            shapes |= {f"blocks.{n}.norm{k}.{part}": (width,) for part in ("weight", "bias")}
            shapes[f"blocks.{n}.ls{k}.gamma"] = (width,)
    rng = np.random.default_rng(9)
    return {
        name: (0.1 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()
    }


def dinov2_inputs():
    """Return two normalised images of 224 x 224."""
    return np.random.default_rng(10).normal(size=(2, 3, 224, 224)).astype(np.float32)
