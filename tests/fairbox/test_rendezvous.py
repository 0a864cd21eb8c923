"""Servers that keys prefer."""

from __future__ import annotations

from collections import Counter

from fairbox.net.rendezvous import preferred

SERVERS = [f"10.0.0.{number}:50051" for number in range(8)]
KEYS = [f"repo {number}" for number in range(800)]


def test_a_key_keeps_its_server_when_others_come_and_go() -> None:
    before = {key: preferred(SERVERS, key) for key in KEYS}
    after = {key: preferred(SERVERS[:0:-1], key) for key in KEYS}
    assert {before[key] for key in KEYS if before[key] != after[key]} == {SERVERS[0]}


def test_all_servers_have_a_share() -> None:
    shares = Counter(preferred(SERVERS, key) for key in KEYS)
    assert set(shares) == {*SERVERS}
    assert 60 < min(shares.values()) <= max(shares.values()) < 150
