"""Names and keys: a bijection, and text that no file can have is told from text that one can."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs.namespace.paths import name_to_text, text_to_name, unnameable

NAMES = st.one_of(
    st.binary(min_size=1, max_size=255),
    st.text(min_size=1, max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")[:255]),
).filter(lambda name: b"/" not in name and b"\0" not in name and name not in {b".", b".."})


@given(NAMES)
def test_a_name_comes_back_from_its_key(name: bytes) -> None:
    text = name_to_text(name)
    text.encode("utf-8")  # every store takes it
    assert "/" not in text
    assert text_to_name(text) == name


@given(NAMES, NAMES)
def test_two_names_never_share_a_key(one: bytes, other: bytes) -> None:
    assert (name_to_text(one) == name_to_text(other)) == (one == other)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_text_that_has_a_file_is_the_key_of_that_file(text: str) -> None:
    name = text_to_name(text)
    if name is not None:
        assert name_to_text(name) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty name"),
        (".", "name is . or .."),
        ("..", "name is . or .."),
        ("a" * 256, "name over 255 bytes"),
        ("é" * 128, "name over 255 bytes"),
        (chr(0x10FF41), "name that no file can have"),
    ],
)
def test_text_that_no_file_can_have_is_refused_with_its_reason(text: str, reason: str) -> None:
    assert text_to_name(text) is None
    assert unnameable(text) == reason
