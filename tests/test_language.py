"""Plain language: private phrases, names that were replaced, and references to documents that are not here stay out.

The source is searched as text, so help texts, error messages, docstrings, comments and identifiers are all covered.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
GAP = r"(?:[\s\"'#*]|f(?=[\"']))+"  # white space, also where a sentence is wrapped or a string is continued

PHRASES = {  # what must not be written -> what to write instead
    r"(?<!-)\bluck\b": "random draws",
    r"\bby lot\b": "uniformly at random",
    r"\bseats?\b": "places in the cohort",
    r"\bnobody is waited for\b": "later replies are ignored",
    r"(?<!there\W)\bis no (?!(?:longer|more|less|such|worse|better|later|reason)\b)": "is not a valid ...",
    r"\bin the place of\b": "instead of",
    r"\b(?:go|goes|going|went|gone) on with\b": "continue, resume",
    r"\bat home\b": "on the client",
    r"\bin (?:this go|(?:two|three|several) goes)\b": "in this run, in three runs",
    r"\bcould not be had\b": "download failed",
    r"\bcheck its rights\b": "check its permissions",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bnothing lists them\b": "omit to list all",
    r"\b\d is asked\b": "the goal is ...",
    r"(?-i:\bNever reached\b)": "not reached",
}
NAMES = {  # names that were replaced, where they are unmistakable -> what they are called now
    r"\b(?:Server|Local)Bench\b": "ServerEvaluator, ClientEvaluator",
    r"\b(?:Strategy|Method)Half\b": "StrategyAggregator, MethodAggregator",
    r"\b(?:Ballot|Believed|Obtained)\b": "MetricKeyVote, ValidReply, StoredRun",
    r"\bby_lot\b": "draw_uniform",
    r"\bquicken\b": "use_fused_gru",
    r"\b(?:epitaph|_mourn)\b": "exit_reason, _on_worker_exit",
    r"\bback_off_most\b": "max_back_off",
    r"\bPlantedFederation\b": "SyntheticFederation",
    r"\bquorum\b": "min_replies, close_after",
    r"\bgather ?=": "buffer_size",
    r"\bliars ?=": "byzantine_fraction",
    r"(?<!\w)--size\b": "--cohort-size",
    r"(?<!\w)--again\b": "--force",
}
REFERENCES = {  # documents that are not in this repository
    r"\bDESIGN\b": "the reason itself",
    r"\bspec [A-Z]\d": "the reason itself",
    r"\bissue \d": "the reason itself",
    r"\[(?:MEM|DER|REC)\]": "say in words where it is from",
}


def written() -> list[Path]:
    """Everything that a person may read, except tests."""
    folders = ("src", "docs", "benchmarks", "examples")
    found = [
        p for name in folders for kind in ("py", "md", "js", "html", "toml") for p in (ROOT / name).rglob(f"*.{kind}")
    ]
    return sorted([*found, *ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"])


def offences(paths: list[Path], rules: dict[str, str]) -> list[str]:
    """One line per offence: where, what, and what to write."""
    patterns = [
        (re.compile(_spaced(rule), re.IGNORECASE if rule in PHRASES else 0), say) for rule, say in rules.items()
    ]
    out = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for pattern, say in patterns:
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                what = " ".join(text[max(match.start() - 25, 0) : match.end() + 25].split())
                out.append(f"{path.relative_to(ROOT)}:{line}: ...{what}... -> {say}")
    return out


def _spaced(rule: str) -> str:
    return re.sub(r"(?<!\)) (?!\?)", lambda _: GAP, rule)


def test_plain_phrases():
    found = offences(written(), PHRASES)
    assert not found, "\n" + "\n".join(found)


def test_replaced_names_are_gone():
    """The changelog names them, to say what became of them."""
    found = offences([p for p in written() if p.name != "CHANGELOG.md"], NAMES)
    assert not found, "\n" + "\n".join(found)


def test_references_lead_somewhere():
    found = offences([*written(), *(p for p in (ROOT / "tests").rglob("*.py") if p != Path(__file__))], REFERENCES)
    assert not found, "\n" + "\n".join(found)
