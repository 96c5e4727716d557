"""The referee's result for one check, in the words that the student will read."""

from dataclasses import asdict, dataclass, field
from html import escape

MOST_OF_A_CAUSE, MOST_OF_A_DETAIL = 4_000, 20_000  # characters: a submission may have written them


def named_ranks(ranks: list[int]) -> str:
    """Return "rank 1", or "ranks 1, 3"."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


@dataclass(frozen=True)
class Verdict:
    """Points for one check and why. `figures` are name -> (measured, allowed), as text with units."""

    check: str
    points: float
    max_points: float
    cause: str  # one sentence; for full points, what was found to hold
    detail: str = ""  # a traceback or a hang report
    figures: dict[str, tuple[str, str]] = field(default_factory=dict)
    inconclusive: bool = False  # the machine was too noisy to tell: judge it again, never fail it
    picture: str = ""  # the submission and the reference: base64 of a PNG

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", _shortened(self.cause, MOST_OF_A_CAUSE))
        object.__setattr__(self, "detail", _shortened(self.detail, MOST_OF_A_DETAIL))

    @property
    def passed(self) -> bool:
        return self.points >= self.max_points

    @property
    def word(self) -> str:
        if self.inconclusive:
            return "INCONCLUSIVE"
        return "PASSED" if self.passed else "PARTIAL" if self.points > 0 else "FAILED"

    def text(self) -> str:
        lines = [f"{self.word} {self.check}: {self.points:g} of {self.max_points:g} points", f"  {self.cause}"]
        for name, (got, allowed) in self.figures.items():
            lines.append(f"  {name}: {got}" + (f" (allowed: {allowed})" if allowed else ""))
        return "\n".join(lines + ([self.detail] if self.detail else []))

    def as_json(self) -> dict:
        """Return the verdict for JSON. Figures become a list, since notebooks are written with sorted keys."""
        return asdict(self) | {"figures": [[name, *pair] for name, pair in self.figures.items()]}

    @classmethod
    def from_json(cls, record: dict) -> "Verdict":
        return cls(**record | {"figures": {name: (got, allowed) for name, got, allowed in record["figures"]}})

    def html(self) -> str:
        """Return the verdict as HTML for a notebook or the feedback page; readable in light and dark themes."""
        colour = {"PASSED": "#1a7f37", "PARTIAL": "#9a6700", "FAILED": "#cf222e", "INCONCLUSIVE": "#57606a"}[self.word]
        rows = [_row("th", "", "yours", "allowed"), *(_row("td", name, *pair) for name, pair in self.figures.items())]
        table = f"<table>{''.join(rows)}</table>" if self.figures else ""
        source = f"data:image/png;base64,{self.picture}"
        picture = f'<br><img src="{source}" alt="yours beside the reference" width="740">' if self.picture else ""
        summary = (
            '<summary style="display: list-item; cursor: pointer">Details</summary>'  # as nbgrader's page resets it
        )
        detail = f"<details>{summary}<pre>{escape(self.detail)}</pre></details>" if self.detail else ""
        return (
            f'<div style="border-left: 4px solid {colour}; padding-left: 0.8em">'
            f'<b style="color: {colour}">{self.word}</b> {escape(self.check)}: '
            f"{self.points:g} of {self.max_points:g} points<br>{escape(self.cause)}{table}{picture}{detail}</div>"
        )


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} (shortened)"


def _row(tag: str, *cells: str) -> str:
    """Return a row with its own padding: nbgrader's feedback page removes the padding of tables."""
    made = (f'<{tag} style="padding: 0.1em 1em 0.1em 0; text-align: left">{escape(cell)}</{tag}>' for cell in cells)
    return f"<tr>{''.join(made)}</tr>"
