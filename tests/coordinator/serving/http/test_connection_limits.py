"""Who may stay connected: strangers within bounds, those who were let in whatever strangers do."""

import ipaddress
import math

import pytest

from smidgen.coordinator.serving.http.connection_limits import (
    EACH,
    ConnectionBounds,
    ConnectionSlots,
    ConnectionTimeouts,
    OpenConnection,
    room_within,
)

HURRIED = ConnectionTimeouts(grace_s=0.0)


class Hall:
    """ConnectionSlots, and which of them were cut."""

    def __init__(self, most: int, strangers: int, each: int, trusted: str = "") -> None:
        networks = [ipaddress.ip_network(trusted)] if trusted else []
        self.guests = ConnectionSlots(ConnectionBounds(most, strangers, each, HURRIED), networks)
        self.cut: list[str] = []

    def come(self, name: str, address: str = "10.0.0.1") -> OpenConnection | None:
        return self.guests.enter(address, lambda: self.cut.append(name))


def test_of_an_address_with_too_many_the_oldest_stranger_goes() -> None:
    hall = Hall(100, 50, 3)
    for name in "abcd":
        assert hall.come(name)
    assert hall.come("elsewhere", "10.0.0.2")
    assert hall.cut == ["a"]


def test_devices_that_were_let_in_do_not_count_against_their_address() -> None:
    hall = Hall(100, 50, 3)
    for number in range(20):
        guest = hall.come(f"d{number}")
        assert guest is not None
        hall.guests.let_in(guest, f"d{number}")
        assert guest.due_s == math.inf
    for name in "abcd":
        assert hall.come(name)
    assert hall.cut == ["a"]


def test_room_is_kept_for_devices_and_strangers_make_it() -> None:
    hall = Hall(10, 5, 5)
    for number in range(30):  # strangers without end
        assert hall.come(f"s{number}", f"10.0.{number}.1")
    assert hall.guests.strangers == 5 and len(hall.cut) == 25
    for number in range(10):
        guest = hall.come(f"d{number}")
        assert guest is not None
        hall.guests.let_in(guest, f"d{number}")
    assert len(hall.guests) == 10 and not hall.guests.strangers
    assert hall.come("one more") is None
    assert not [name for name in hall.cut if name.startswith("d")]


def test_who_came_just_now_makes_no_room_and_the_next_is_turned_away() -> None:
    guests = ConnectionSlots(ConnectionBounds(100, 50, 2, ConnectionTimeouts(grace_s=60.0)))
    cut: list[int] = []
    assert [guests.enter("10.0.0.1", lambda: cut.append(1)) is None for _ in range(4)] == [
        *(False, False),
        *(True, True),
    ]
    assert not cut


def test_the_connections_of_one_device_that_count_are_few() -> None:
    hall = Hall(1000, 500, 5)
    for number in range(3 * EACH):
        guest = hall.come(f"{number}")
        assert guest is not None
        hall.guests.let_in(guest, "one device")
    assert len(hall.guests) - hall.guests.strangers == EACH
    assert hall.guests.strangers <= 5  # and older ones are strangers' again


def test_a_proxy_that_is_trusted_may_speak_for_many() -> None:
    hall = Hall(100, 50, 3, trusted="10.0.0.0/24")
    assert all(hall.come(f"{number}") for number in range(20))
    assert not hall.cut


def test_an_ipv6_network_counts_as_one_address() -> None:
    hall = Hall(100, 50, 3)
    for number in range(5):
        assert hall.come(f"{number}", f"2001:db8:0:1::{number}")
    assert hall.come("elsewhere", "2001:db8:0:2::1")
    assert hall.cut == ["0", "1"]


@pytest.mark.parametrize("files", [64, 1024, 4096, 65_536])
def test_whatever_may_be_opened_some_of_it_is_kept_for_devices(files: int) -> None:
    room = room_within(files)
    assert 1 <= room.each_address <= room.strangers <= room.most // 2
