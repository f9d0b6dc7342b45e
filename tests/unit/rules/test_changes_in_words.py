"""Changes in words: every field, and a short form for the creation of a pool."""

from __future__ import annotations

from rules.changes import in_short, in_words


def test_creation_of_a_pool_is_short_and_all_its_fields_are_in_the_wide_form() -> None:
    new = {"replicas": 14, "image": "runner:1", "labels": ["linux"]}
    old = dict.fromkeys(new)
    assert in_short(old, new) == "created: 14 replicas, image runner:1"
    assert in_words(old, new) == "image: - → runner:1, labels: - → linux, replicas: - → 14"


def test_other_changes_are_whole_in_both_forms() -> None:
    old, new = {"replicas": 3, "image": "a"}, {"replicas": 4, "image": "b"}
    assert in_short(old, new) == in_words(old, new) == "image: a → b, replicas: 3 → 4"
    assert in_short({"paused": None}, {"paused": True}) == "paused: - → yes"
