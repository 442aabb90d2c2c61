"""The log of a run as a table: records by position, columns by name."""

from collections.abc import Iterable
from typing import Any

from controlvae.errors import UserError, unknown_name_error


class Log(list[dict[str, Any]]):
    """Records of a run's log, in order. A name selects a column, a number a record.

    >>> log = Log([{"step": 10, "kl": 3.5}, {"step": 20, "kl": 4.0}])
    >>> log["kl"]
    [3.5, 4.0]
    >>> log[-1]["step"]
    20
    """

    def __init__(self, records: Iterable[dict[str, Any]] = ()) -> None:
        super().__init__(records)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self[0]) if self else []

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if self and key not in self.columns:
                raise unknown_name_error("column of the log", key, self.columns)
            return [record.get(key) for record in self]
        found = super().__getitem__(key)
        return Log(found) if isinstance(key, slice) else found

    def to_pandas(self) -> Any:
        """Return the log as a data frame, with the steps as its index."""
        try:
            import pandas
        except ImportError:
            raise UserError("to_pandas needs a package: pip install pandas") from None
        frame = pandas.DataFrame(list(self))
        return frame.set_index("step") if len(frame) else frame
