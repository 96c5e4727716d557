"""Format figures for people: GiB, milliseconds, percent."""

GIB, MIB = 1 << 30, 1 << 20


def gib(n_bytes: float, unit: bool = True) -> str:
    """Format bytes with three digits: "61.2 GiB", "128 GiB"; below a tenth of a GiB in MiB if `unit` is shown."""
    size, name = (n_bytes / GIB, "GiB") if abs(n_bytes) >= GIB / 10 or not unit else (n_bytes / MIB, "MiB")
    return _three_digits(size) + (f" {name}" if unit else "")


def seconds(s: float) -> str:
    """Format a time: "41 ms", "1.31 s"."""
    return f"{_three_digits(s)} s" if s >= 1 else f"{_three_digits(s * 1e3)} ms"


def duration(s: float) -> str:
    """Format how long a training takes: "3.4 hours", "12.5 days"."""
    hours = s / 3600
    return f"{_three_digits(hours)} hours" if hours < 72 else f"{_three_digits(hours / 24)} days"


def percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.0995 or not share else f"{share:.1%}"


def _three_digits(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 99.95 else f"{x:.1f}" if abs(x) >= 9.995 else f"{x:.2f}"
