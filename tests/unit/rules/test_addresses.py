"""Blocks of addresses: their unions, and their addresses behind NAT64."""

from __future__ import annotations

import pytest

from deploys.addresses import PRIVATE, PRIVATE_V4, PRIVATE_V6, Addresses, behind_nat64, block, blocks


def test_a_block_is_known_by_what_it_is_behind_nat64() -> None:
    assert behind_nat64("10.0.0.0/8") == "64:ff9b::a00:0/104"
    assert behind_nat64("168.63.129.16/32") == "64:ff9b::a83f:8110/128"
    assert behind_nat64("10.1.2.3/8") == behind_nat64("10.0.0.0/8")


def test_private_ranges_are_private_behind_nat64_too() -> None:
    assert {behind_nat64(each) for each in PRIVATE_V4} <= set(PRIVATE_V6)


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "fd00::1", "::1", "64:ff9b::a00:1"])
def test_no_private_address_is_of_the_internet(address: str) -> None:
    assert not block(address).minus(PRIVATE)
    assert block(address).common(PRIVATE) == block(address)


def test_both_versions_are_kept_apart() -> None:
    four, six = block("192.0.2.0/24"), block("2001:db8::/32")
    both = four.union(six)
    assert both.cidrs() == ("192.0.2.0/24", "2001:db8::/32")
    assert (both.minus(four), both.minus(six)) == (six, four)
    assert (both.common(four), both.common(six)) == (four, six)
    assert bool(four)
    assert bool(six)
    assert not Addresses()
    assert blocks(("192.0.2.0/25", "192.0.2.128/25", "2001:db8::/32")) == both


def test_an_address_in_a_block_stands_for_the_block() -> None:
    assert block("192.0.2.7/24") == block("192.0.2.0/24")
    assert block("192.0.2.7").cidrs() == ("192.0.2.7/32",)
    with pytest.raises(ValueError, match="does not appear"):
        block("somewhere")
