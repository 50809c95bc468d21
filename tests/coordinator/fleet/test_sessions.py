"""Two clients with one key are found, whatever words of a life that has ended come late."""

from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.fleet.presence import MOST_REFUSED, Sessions


def polled(lives: Sessions, life: str, device: str = "d") -> bool:
    """A poll; whether it was taken."""
    is_taken = lives.is_newest(device, life)
    if not is_taken:
        lives.refuse(device, life, 7.0)
    return is_taken


def test_the_client_that_enrolled_last_is_the_device() -> None:
    lives = Sessions()
    lives.began("d", "a")
    assert polled(lives, "a")
    lives.began("d", "b")
    assert polled(lives, "b") and not polled(lives, "a") and polled(lives, "b")
    assert lives.cloned() == {}


def test_where_nothing_is_known_the_one_that_enrolled_last_by_its_row_is_the_device() -> None:
    lives = Sessions()
    assert not lives.is_newest("d", "a", "b") and lives.is_newest("d", "b", "b")
    assert lives.is_newest("e", "a", "")  # an older client enrolled, which said none
    lives.began("d", "a")
    assert lives.is_newest("d", "a", "b")  # the row that was read is older


def test_two_that_both_come_back_are_two_lives_and_told_once() -> None:
    lives = Sessions()
    taken = []
    lives.began("d", "a")
    for life, other in ("ba", "ab", "ba", "ab", "ba"):
        lives.began("d", life)
        taken.append(polled(lives, other))
    assert taken == [False] * 5 and lives.cloned() == {"d": 7.0}
    for life, other in ("ab", "ba"):
        lives.began("d", life)
        polled(lives, other)
    assert lives.cloned() == {}


def test_an_enrolment_that_comes_late_costs_the_living_one_turn() -> None:
    lives = Sessions()
    lives.began("d", "new")
    lives.began("d", "dead")  # it was on its way while its client was killed
    assert not polled(lives, "new")
    lives.began("d", "new")
    assert all(polled(lives, "new") for _ in range(9)) and lives.cloned() == {}


def test_after_a_start_of_the_coordinator_whichever_polls_is_believed() -> None:
    lives = Sessions()
    assert polled(lives, "a") and polled(lives, "a")
    lives.began("d", "b")
    assert polled(lives, "b")


def test_clients_that_do_not_say_their_life_are_let_be() -> None:
    lives = Sessions()
    lives.began("d", "a")
    lives.began("d", "")
    assert polled(lives, "") and polled(lives, "a")


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
def test_one_life_after_the_other_is_never_a_clone(steps: list[tuple[bool, bool]]) -> None:
    """Each step: does the coordinator start again, does the client; late words come anywhere."""
    lives, life = Sessions(), 0
    lives.began("d", "0")
    for is_new_coordinator, is_new_client in steps:
        if is_new_coordinator:
            lives = Sessions()
        if is_new_client:
            life += 1
            lives.began("d", str(life))
            if life > 1:
                polled(lives, str(life - 1))  # of the one before, still on its way
        if not polled(lives, str(life)):
            lives.began("d", str(life))  # as a client does, once in its life
            assert polled(lives, str(life))
        assert lives.cloned() == {}


def test_lives_that_are_made_up_fill_no_memory() -> None:
    lives = Sessions()
    lives.began("d", "a")
    for number in range(1000):
        polled(lives, str(number))
    assert len(lives._known["d"].refused) == MOST_REFUSED
