"""Ailments of the lab's runners, by the tag of an image."""

import pytest

from lab.github import world
from lab.kubelet.ailments import CURRENT, TOO_OLD, Ailment, Condition, condition_of


@pytest.mark.parametrize(
    ("image", "condition"),
    [
        ("", Condition()),
        ("runner:1", Condition()),
        ("localhost:5000/runner", Condition()),
        ("ghcr.io/acme/actions-runner:2.330.0", Condition(version="2.330.0")),
        ("runner:too-old", Condition(Ailment.TOO_OLD, None, TOO_OLD)),
        ("runner:7-too-old", Condition(Ailment.TOO_OLD, None, TOO_OLD)),
        ("runner:updates", Condition(Ailment.UPDATES)),
        ("runner:updates-90", Condition(Ailment.UPDATES, 90)),
        ("runner:no-egress", Condition(Ailment.NO_EGRESS)),
        ("localhost:5000/ci/runner:crashes-134@sha256:00", Condition(Ailment.CRASHES, 134)),
        ("runner:no-client", Condition(Ailment.NO_CLIENT)),
        ("runner:no-runner", Condition(Ailment.NO_RUNNER)),
        ("runner:wrong-user", Condition(Ailment.WRONG_USER)),
        ("runner:no-shell", Condition(Ailment.NO_SHELL)),
        ("runner:much-too-older", Condition()),
    ],
)
def test_the_tag_of_an_image_says_what_ails_its_runners(image: str, condition: Condition) -> None:
    assert condition_of(image) == condition


def test_only_the_current_version_is_taken_by_the_labs_github() -> None:
    assert world.TOO_OLD == TOO_OLD
    assert CURRENT != TOO_OLD
