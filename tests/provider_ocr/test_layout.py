"""Reading order of recognised pieces: pure geometry, no engine."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck_ocr.local.layout import (
    Block,
    Heading,
    Paragraph,
    Piece,
    Quad,
    Table,
    arrange,
    straighten,
    to_markdown,
    to_text,
)

HEIGHT = 20


def piece(left: float, top: float, text: str, *, height: float = HEIGHT, width: float | None = None) -> Piece:
    """A piece of text that is half as wide a letter as it is high."""
    return Piece(left, top, left + (width or len(text) * height / 2), top + height, text)


def lines(left: float, top: float, *texts: str, pitch: float = 26) -> list[Piece]:
    """Lines of prose below each other."""
    return [piece(left, top + index * pitch, text) for index, text in enumerate(texts)]


def test_lines_close_together_are_one_paragraph() -> None:
    """Lines with little room between them belong together; a wider gap starts a new paragraph."""
    page = lines(0, 0, "one one one one", "two two two two") + lines(0, 90, "three three", "four four four")

    blocks = arrange(page)

    assert blocks == [
        Paragraph(("one one one one", "two two two two")),
        Paragraph(("three three", "four four four")),
    ]


def test_widely_set_lines_stay_one_paragraph() -> None:
    """Double spacing is a way to set text, not a paragraph after each line."""
    page = lines(0, 0, "first line of all", "second line of all", "third line of all", pitch=2.2 * HEIGHT)

    assert len(arrange(page)) == 1


def test_pieces_of_one_line_are_joined_from_left_to_right() -> None:
    """The engine may cut a line at a wide space and report the right part first."""
    page = [
        piece(210, 3, "right part"),
        piece(0, 0, "left part of a line"),
        piece(0, 40, "a line across all of it" * 2),
    ]

    assert to_text(arrange(page)).splitlines()[0] == "left part of a line right part"


def test_two_columns_are_read_one_after_the_other() -> None:
    """Columns of prose are not read across, although their lines share heights."""
    left = lines(0, 100, "left one is a line", "left two is a line", "left three is one")
    right = lines(300, 100, "right one is a line", "right two is one", "right three is one")

    text = to_text(arrange([piece(100, 0, "a heading over both columns"), *right, *left]))

    assert text.splitlines() == [
        "a heading over both columns",
        *(piece.text for piece in left),
        *(piece.text for piece in right),
    ]


@pytest.mark.parametrize("shift", [0, 7, 13, 19])
def test_columns_need_not_share_their_lines(shift: float) -> None:
    """Columns are found by the empty strip between them, however their lines are shifted."""
    left = lines(0, 0, *[f"left line number {n}" for n in range(8)])
    right = lines(300, shift, *[f"right line number {n}" for n in range(8)])

    assert to_text(arrange(right + left)).splitlines() == [piece.text for piece in left + right]


def test_text_below_columns_is_read_after_them() -> None:
    """A line across the page ends the columns."""
    left = lines(0, 0, *[f"left line number {n}" for n in range(4)])
    right = lines(300, 0, *[f"right line number {n}" for n in range(4)])
    below = piece(0, 130, "a last line that goes across the whole of the page")

    assert to_text(arrange([below, *right, *left])).splitlines()[-1] == below.text


def test_aligned_rows_become_a_table() -> None:
    """Figures stand on the right and heads on the left of the same column; a missing cell stays empty."""
    page = [
        *[piece(0, 0, "Name"), piece(200, 0, "Count"), piece(300, 0, "Price")],
        *[piece(0, 40, "Pencil, hard"), piece(265, 40, "40"), piece(370, 40, "0.80")],
        *[piece(0, 80, "Delivery"), piece(370, 80, "9.00")],
        *[piece(0, 120, "Paper"), piece(265, 120, "12"), piece(360, 120, "23.50")],
    ]

    (table,) = arrange(page)

    assert table == Table(
        (
            ("Name", "Count", "Price"),
            ("Pencil, hard", "40", "0.80"),
            ("Delivery", "", "9.00"),
            ("Paper", "12", "23.50"),
        )
    )


def test_lines_around_a_table_stay_outside() -> None:
    """Text above and below a table does not become a row of it."""
    page = [
        piece(0, 0, "A sentence that introduces the table below."),
        *[piece(0, 60, "left"), piece(200, 60, "right")],
        *[piece(0, 100, "more"), piece(200, 100, "cells")],
        piece(0, 160, "The end."),
    ]

    kinds = [type(block) for block in arrange(page)]

    assert kinds == [Paragraph, Table, Paragraph]


def test_two_tables_far_apart_stay_two() -> None:
    """Tables with different columns are not forced into one grid only because the same strip is empty."""
    page = [
        *[piece(0, 0, "Number"), piece(200, 0, "17")],
        *[piece(0, 30, "Date"), piece(200, 30, "May")],
        *[piece(0, 120, "a"), piece(200, 120, "b"), piece(300, 120, "c")],
        *[piece(0, 150, "d"), piece(200, 150, "e"), piece(300, 150, "f")],
    ]

    first, second = arrange(page)

    assert isinstance(first, Table)
    assert isinstance(second, Table)
    assert (len(first.rows[0]), len(second.rows[0])) == (2, 3)


def test_tall_lines_are_headings() -> None:
    """A heading is told by its height, and its level by how tall it is."""
    text = lines(0, 200, "the text of this page", "goes on for some lines", "so that it is the usual")
    page = [piece(0, 0, "Title", height=40), piece(0, 100, "Section one", height=27), *text]

    assert arrange(page)[:2] == [Heading("Title", 1), Heading("Section one", 2)]


def test_blank_pieces_and_empty_pages_give_nothing() -> None:
    """Noise does not become a block."""
    assert arrange([]) == []
    assert arrange([piece(0, 0, " ", width=30)]) == []


def test_markdown_escapes_bars_in_cells() -> None:
    """A vertical bar inside a cell must not open another cell."""
    table = Table((("a|b", "c"), ("d", "e")))

    assert to_markdown([table]) == "| a\\|b | c |\n| --- | --- |\n| d | e |"


def test_markdown_separates_blocks_by_blank_lines() -> None:
    """Headings get their signs, lines of a paragraph stay lines."""
    blocks: list[Block] = [Heading("Title", 1), Paragraph(("one", "two")), Heading("Part", 2)]

    assert to_markdown(blocks) == "# Title\n\none\ntwo\n\n## Part"


def quad(left: float, top: float, width: float, *, slant: float) -> Quad:
    """The corners of a line on a sheet that was turned by ``slant`` (radians) around its top left corner."""
    corners = ((left, top), (left + width, top), (left + width, top + HEIGHT), (left, top + HEIGHT))
    a, b, c, d = (
        (x * math.cos(slant) - y * math.sin(slant), x * math.sin(slant) + y * math.cos(slant))
        for x, y in corners
    )
    return (a, b, c, d)


@given(st.floats(-0.1, 0.1))
def test_a_slanted_sheet_reads_like_a_straight_one(slant: float) -> None:
    """Up to some six degrees the pieces come back to where they were on the sheet."""
    corners = [(0.0, 0.0, 400.0), (0.0, 30.0, 300.0), (350.0, 30.0, 50.0)]

    pieces = straighten([(quad(*place, slant=slant), str(place)) for place in corners])

    for (left, top, width), found in zip(corners, pieces, strict=True):
        assert (found.left, found.top, found.right, found.bottom) == pytest.approx(
            (left, top, left + width, top + HEIGHT), abs=1e-6
        )


@given(
    st.lists(
        st.builds(
            piece,
            st.floats(0, 1000),
            st.floats(0, 1000),
            st.from_regex(r"[a-z]{1,12}", fullmatch=True),
            height=st.floats(5, 60),
        ),
        max_size=40,
    )
)
def test_no_piece_is_lost_or_doubled(page: list[Piece]) -> None:
    """Whatever the page looks like, every piece is read exactly once."""
    read = to_text(arrange(page)).split()

    assert sorted(read) == sorted(piece.text for piece in page)
