"""What a recorded run is reported as: a table of its own per number of parallel sequences, or JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyanalysis.record.text_report import NGRAM_TOKENS

if TYPE_CHECKING:
    from pyanalysis.record.text_report import Repetition, SharedPrefixes

# Of 8-grams, by request, from which on a report names it: prose and code stay below.
_LOOPING = 0.2


@dataclass(frozen=True)
class TokenCounts:
    """Tokens by phase, events and lost events of a log."""

    prefill: int
    decode: int
    n_events: int
    n_lost: int


@dataclass(frozen=True)
class RunReport:
    """`n_finished` of `n_requests` were generated to the end; `repetition` is theirs, `prefixes` of all prompts."""

    workload: str
    n_parallel: int
    n_requests: int
    n_finished: int
    interrupted: bool
    counts: TokenCounts
    repetition: Repetition
    prefixes: SharedPrefixes
    folder: str

    def results(self) -> dict[str, Any]:
        """What run.json keeps of it."""
        counts = {"prefill_tokens": self.counts.prefill, "decode_tokens": self.counts.decode}
        counts |= {"events": self.counts.n_events, "lost_events": self.counts.n_lost}
        return {
            "finished_requests": self.n_finished,
            "interrupted": self.interrupted,
            **counts,
            "repetition": {"ngram_tokens": NGRAM_TOKENS, **asdict(self.repetition)},
            "shared_prefixes": {
                "longest_tokens": self.prefixes.longest,
                "shared_tokens": self.prefixes.n_tokens,
                "share": self.prefixes.share,
            },
        }

    def as_json(self) -> dict[str, Any]:
        head = {"workload": self.workload, "parallel": self.n_parallel, "requests": self.n_requests}
        return {**head, **self.results(), "log": self.folder}


def as_text(report: RunReport) -> str:
    """The table of one run."""
    sequences = "1 sequence at a time" if report.n_parallel == 1 else f"{report.n_parallel} sequences in parallel"
    counts = report.counts
    lines = [
        f"{report.workload}, {sequences}",
        f"  requests     {report.n_finished} of {report.n_requests} finished{' (interrupted)' * report.interrupted}",
        f"  tokens       {counts.prefill:,} prefill, {counts.decode:,} decode",
        f"  events       {counts.n_events:,}, {counts.n_lost or 'none'} lost",
        f"  repetition   {_repetition(report.repetition)}",
        f"  prefixes     {_prefixes(report.prefixes)}",
        f"  log          {report.folder}",
    ]
    looping = [f"{i} ({rate:.1%})" for i, rate in enumerate(report.repetition.by_request) if (rate or 0) >= _LOOPING]
    if looping:
        lines.insert(-1, f"  note         much repeated in request {', '.join(looping)}: a loop has false locality")
    return "\n".join(lines)


def _repetition(repetition: Repetition) -> str:
    if repetition.rate is None:
        return f"not known: no finished request has {NGRAM_TOKENS} generated tokens"
    rates = [rate for rate in repetition.by_request if rate is not None]
    return (
        f"{repetition.rate:.1%} of the {NGRAM_TOKENS}-grams of generated tokens occurred before in their request "
        f"({min(rates):.1%} to {max(rates):.1%} by request)"
    )


def _prefixes(prefixes: SharedPrefixes) -> str:
    if not prefixes.longest:
        return "no two prompts begin with the same token"
    plural = "" if prefixes.longest == 1 else "s"
    return (
        f"{prefixes.share:.1%} of the prompts' tokens lie in a prefix that another prompt has too; "
        f"the longest has {prefixes.longest} token{plural}"
    )
