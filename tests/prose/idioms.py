"""Idioms that the style rules of CONTRIBUTING.md refuse, each with the advice that its finding shows.

Pure: text in, findings out. A finding is a help to the writer, not a grammar: the patterns are few, and each of
them was frequent in this project. Code, links and quoted words in Markdown are not prose and are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One idiom in a text: its line (from 1), the words, and what to write instead."""

    line: int
    words: str
    advice: str


_RELATIVE = "name the thing again in a second sentence"
_AMOUNT = "give the number with its unit, or name the setting that has it"
_IDIOMS = tuple(
    (re.compile(pattern, re.IGNORECASE), advice)
    for pattern, advice in (
        (r"(?<!seconds )\b(?:of|for|from|with|by|to|on|behind|without) which\b", _RELATIVE),
        (r"\b(?:of|for|by|with|to|on|from) (?:what|whom)\b", _RELATIVE),
        (r"\b(?:of|in|for|by|with|on) whose\b", _RELATIVE),
        (r"\bwho(?:so)?ever\b|\bthat which\b|\bthose of which\b", "name the person or the process"),
        (r"\b(?:for|in|of|after) so (?:long|many|much)\b|\bso (?:many|much) (?:more|seconds|later)\b", _AMOUNT),
        (r"\bmay not\b", '"must not" prohibits, "might not" doubts'),
        (r"\bfor want of\b|\banew\b|\bin its turn\b|\bat a check\b|\bcome to what\b", "use a common word"),
    )
)
_TITLE = re.compile(r"(?:What|Which|How(?! many)|Who|Whose|Why|When|Where)\b|(?:Be|Have|Hear|Say|See|Stand for)\b")
_TITLE_ADVICE = "start with a noun phrase or the verb of an operation"
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_NO_PROSE = re.compile(r"`[^`\n]*`|\]\([^)\s]*\)|\"[^\"\n]{1,60}\"")


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def in_text(text: str, *, first_line: int = 1) -> Iterator[Finding]:
    """Yield the idioms of a text in the order of their lines; an idiom over a line break has the line it starts in."""
    flat = text.replace("\n", " ")
    found = [
        Finding(first_line + text.count("\n", 0, match.start()), match.group(), advice)
        for pattern, advice in _IDIOMS
        for match in pattern.finditer(flat)
    ]
    yield from sorted(found, key=lambda finding: finding.line)


def in_markdown(text: str) -> Iterator[Finding]:
    """Yield the idioms of a Markdown page; code, link targets and short quotations are not read."""
    yield from in_text(_NO_PROSE.sub(_blank, _FENCE.sub(_blank, text)))


def in_python(source: str) -> Iterator[Finding]:
    """Yield the idioms of a module: of each docstring, also below assignments, and of each column comment."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield from in_text(_NO_PROSE.sub(_blank, text), first_line=node.lineno)
                if word := _TITLE.match(text):
                    yield Finding(node.lineno, word.group(), _TITLE_ADVICE)
            case ast.keyword(arg="comment", value=ast.Constant(value=str(text))):
                yield from in_text(_NO_PROSE.sub(_blank, text), first_line=node.lineno)
