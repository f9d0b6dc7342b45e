"""The name of a runner on GitHub."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.claims.runner_names import MAX_LENGTH, make_runner_name, random_suffix

SUFFIX = "0123abcd"


def test_a_short_pod_name_is_kept_whole() -> None:
    assert make_runner_name("linux-4cpu-9f8e7d6c", SUFFIX) == "linux-4cpu-9f8e7d6c-0123abcd"


def test_a_long_pod_name_is_cut_to_64_characters_with_its_suffix_whole() -> None:
    name = make_runner_name("p" * 200, SUFFIX)

    assert name == "p" * 55 + "-" + SUFFIX
    assert len(name) == MAX_LENGTH


def test_a_cut_that_ends_on_a_dash_leaves_no_second_dash() -> None:
    assert make_runner_name("p" * 53 + "--" + "q" * 20, SUFFIX) == "p" * 53 + "-" + SUFFIX


def test_characters_that_a_name_may_not_have_become_dashes() -> None:
    assert make_runner_name("pool/ü one", SUFFIX) == f"pool---one-{SUFFIX}"


@pytest.mark.parametrize("suffix", ["", "0123ABCD", "0123abc", "0123abcde", "0123abc\n", "0123abcg"])
def test_a_suffix_that_is_not_8_hex_digits_is_refused(suffix: str) -> None:
    with pytest.raises(ValueError, match="8 lower-case hex"):
        make_runner_name("pod", suffix)


@given(pod_name=st.text(), random=st.binary(min_size=4))
def test_every_name_is_valid_and_ends_with_its_suffix(pod_name: str, random: bytes) -> None:
    suffix = random_suffix(random)

    name = make_runner_name(pod_name, suffix)

    assert len(name) <= MAX_LENGTH
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?-[0-9a-f]{8}", name)
    assert name.endswith(f"-{suffix}")


def test_too_few_random_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="4 random bytes"):
        random_suffix(b"abc")


@pytest.mark.parametrize(("pod", "stem"), [("XpodX", "XpodX"), ("-._pod-._", "pod"), ("", "runner"), ("---", "runner")])
def test_only_separators_are_cut_off_and_a_name_without_a_rest_is_runner(pod: str, stem: str) -> None:
    assert make_runner_name(pod, SUFFIX) == f"{stem}-{SUFFIX}"
