"""Number formats shared by reports and the command line."""


def format_number(value: float | None, digits: int = 2) -> str:
    """Format a number, or a dash for None: not measured, or too large for JSON."""
    return "–" if value is None else f"{value:.{digits}f}"
