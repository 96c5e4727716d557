"""One thing that `shardlab doctor` found out about this machine."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    what: str
    found: str
    ok: bool = True
    remedy: str = ""  # what to do if `ok` is False
    needed: bool = True  # if False, only some users need it, and `remedy` says who

    @property
    def mark(self) -> str:
        return "ok" if self.ok else "!!" if self.needed else "--"

    def as_json(self) -> dict:
        return asdict(self)
