"""Random damage of bytes and of JSON values, and strange values to put into them."""

import copy
import json
import random
from typing import Any

# Texts and numbers that have broken parsers before.
STRANGE_NUMBERS = [
    0,
    -1,
    1,
    255,
    65_536,
    -(2**31),
    2**31,
    2**63,
    2**64,
    10**31,
    10**102,
    10**400,
    0.1,
    -0.0,
    1e-320,
    1e30,
    1e102,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
]
STRANGE_TEXTS = [
    "",
    " ",
    "\0",
    "\ud800",
    "é",
    "\U0001f600",
    "../..",
    "/dev/null",
    "a" * 5_000,
    "nan",
    "none",
    "None",
    "true",
    "1e5",
    "{}",
    "%s%n",
    "\n",
    "-",
    "[",
]


def strange_value(draw: random.Random, depth: int = 0) -> Any:
    """Return a JSON value of any type, also nested, huge or not finite."""
    kind = draw.randrange(9 if depth < 3 else 5)
    if kind == 0:
        return draw.choice([None, True, False])
    if kind in (1, 2):
        return draw.choice(STRANGE_NUMBERS)
    if kind in (3, 4):
        return draw.choice(STRANGE_TEXTS)
    if kind == 5:
        return [strange_value(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 6:
        keys = ["step", "kl", "type", "target", "event", "", "a"]
        return {draw.choice(keys): strange_value(draw, depth + 1) for _ in range(draw.randrange(3))}
    nested: Any = 0
    for _ in range(draw.choice([3, 50, 150, 900])):
        nested = [nested] if kind == 7 else {"a": nested}
    return nested


def mutate_json(draw: random.Random, value: Any) -> Any:
    """Return a JSON value with one to three random changes."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice([1, 1, 2, 3])):
        value = _mutate_once(draw, value)
    return value


def _mutate_once(draw: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        action = draw.randrange(6)
        if action == 0:
            del value[name]
        elif action == 1:
            value[draw.choice(["", "step", "x", name.upper()])] = strange_value(draw)
        elif action == 2:
            other = draw.choice(list(value))
            value[name], value[other] = value[other], value[name]
        else:
            value[name] = _mutate_once(draw, value[name])
        return value
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        action = draw.randrange(4)
        if action == 0:
            del value[place]
        elif action == 1:
            value.insert(place, strange_value(draw))
        else:
            value[place] = _mutate_once(draw, value[place])
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and draw.random() < 0.4:
        return value * draw.choice([-1, 0, 2, 1000])
    return strange_value(draw)


def dump_json(value: Any) -> bytes:
    """Return JSON as bytes, lone surrogates and NaN included."""
    try:
        return json.dumps(value).encode("utf-8", errors="surrogatepass")
    except (ValueError, RecursionError):  # a whole number of more digits than Python prints
        return b"[" * 1_000


def mutate_bytes(draw: random.Random, data: bytes) -> bytes:
    """Return bytes with random damage: flipped, cut, repeated, inserted or overwritten."""
    damaged = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 4, 16])):
        if not damaged:
            return bytes(draw.randrange(256) for _ in range(draw.randrange(64)))
        # Headers are at the start and directories at the end, so these places are hit more often.
        ends = [draw.randrange(len(damaged)), draw.randrange(min(len(damaged), 128))]
        place = draw.choice([*ends, len(damaged) - 1 - draw.randrange(min(len(damaged), 128))])
        length = draw.choice([1, 1, 2, 4, 16, 100])
        action = draw.randrange(9)
        if action == 0:
            damaged[place] ^= 1 << draw.randrange(8)
        elif action == 1:
            damaged[place] = draw.choice([0, 1, 0x20, 0x7F, 0x80, 0xFF, draw.randrange(256)])
        elif action == 2:
            del damaged[place : place + length]
        elif action == 3:
            del damaged[place:]
        elif action == 4:
            damaged[place:place] = damaged[place : place + length]
        elif action == 5:
            damaged[place:place] = bytes(draw.randrange(256) for _ in range(length))
        elif action == 6:
            number = draw.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, draw.randrange(1 << 32)])
            damaged[place : place + 4] = number.to_bytes(4, draw.choice(["little", "big"]))
        elif action == 7:
            digits = [index for index, byte in enumerate(damaged[:4000]) if 48 <= byte <= 57]
            if digits:
                at = draw.choice(digits)
                damaged[at : at + 1] = draw.choice([b"0", b"9", b"-1", b"99999999999", b"1e9"])
        else:
            other = draw.randrange(len(damaged))
            damaged[place : place + length] = damaged[other : other + length]
    return bytes(damaged)
