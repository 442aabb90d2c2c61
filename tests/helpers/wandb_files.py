"""Reading of W&B's offline files, which are LevelDB logs of protocol buffers."""

import json
import struct

_BLOCK = 32_768
_FULL, _FIRST, _LAST = 1, 2, 4


def read_offline_run(folder):
    """Return the config and the history rows of the offline runs in `folder/wandb`, oldest first."""
    from wandb.proto.wandb_internal_pb2 import Record

    config, rows, ids = {}, [], []
    # A file's name has its time to the second: those of one second are told apart by their age.
    files = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    for file in sorted(files, key=lambda path: path.stat().st_mtime_ns):
        for data in _records(file.read_bytes()):
            record = Record.FromString(data)
            if record.HasField("run"):
                ids.append(record.run.run_id)
                items = record.run.config.update
                config.update({item.key: json.loads(item.value_json) for item in items})
            if record.HasField("history"):
                rows.append(
                    {
                        item.key or "/".join(item.nested_key): json.loads(item.value_json)
                        for item in record.history.item
                    }
                )
    return config, rows, ids


def _records(content):
    """Yield the records of a LevelDB log. Its own header counts as a part of the first block."""
    position, parts = 7, []
    while position + 7 <= len(content):
        left = _BLOCK - position % _BLOCK
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        if kind == 0:
            return
        parts = [] if kind in (_FULL, _FIRST) else parts
        parts.append(content[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
