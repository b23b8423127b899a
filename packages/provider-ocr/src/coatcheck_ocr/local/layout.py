"""Reading order: pieces of recognised text with their places become paragraphs, headings and tables.

Pure functions: nothing here reads a file, knows an engine or keeps anything. The rules are few on purpose.
Pieces that share a height form a *band*; bands that leave the same vertical strip empty form columns of prose
or a table; the rest is read line by line, from the top down.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median, multimode

from attrs import frozen

Point = tuple[float, float]
#: The corners of a piece of text, beginning at the top left one, clockwise as the text is read.
Quad = tuple[Point, Point, Point, Point]
#: An empty strip between two x positions.
Strip = tuple[float, float]

#: Empty strips narrower than this, in line heights, are spaces between words.
MIN_STRIP = 0.8
#: A column of prose is at least this wide, in line heights; narrower ones are columns of a table.
MIN_PROSE_WIDTH = 8
#: ... and its middle line fills at least this part of the width.
MIN_PROSE_FILL = 0.6
#: A gap between two lines of more than this, in line heights, ends a paragraph.
PARAGRAPH_GAP = 0.6
#: A gap between two rows of more than this, in line heights, ends a table.
TABLE_GAP = 1.6
#: A line this much taller than the page's middle line is a heading, or a heading of the first level.
HEADING, FIRST_HEADING = 1.25, 1.45


@frozen
class Piece:
    """Text in an upright rectangle; x grows to the right and y downwards, in pixels."""

    left: float
    top: float
    right: float
    bottom: float
    text: str

    @property
    def height(self) -> float:
        """From top to bottom."""
        return self.bottom - self.top

    @property
    def width(self) -> float:
        """From left to right."""
        return self.right - self.left


@frozen
class Paragraph:
    """Lines that belong together."""

    lines: tuple[str, ...]


@frozen
class Heading:
    """One line that is larger than the text; ``level`` 1 is the largest."""

    text: str
    level: int


@frozen
class Table:
    """Rows of equally many cells; the first row is the head."""

    rows: tuple[tuple[str, ...], ...]


Block = Paragraph | Heading | Table


def arrange(pieces: Iterable[Piece]) -> list[Block]:
    """Put the pieces of one page into reading order.

    Blank pieces are dropped; every other piece is in exactly one block.
    """
    seen = [piece for piece in pieces if piece.text.strip()]
    if not seen:
        return []
    # Short pieces are measured badly: a digit's box is often as high as two lines.
    long = [piece for piece in seen if piece.width > 3 * piece.height] or seen
    return _read_region(seen, median(piece.height for piece in long))


def to_markdown(blocks: Iterable[Block]) -> str:
    """Write blocks as markdown, a blank line between two of them."""
    return "\n\n".join(_write_block(block) for block in blocks)


def to_text(blocks: Iterable[Block]) -> str:
    """Write blocks as plain lines; cells of a table row are separated by tabs."""
    lines: list[str] = []
    for block in blocks:
        match block:
            case Heading(text=text):
                lines.append(text)
            case Paragraph(lines=more):
                lines.extend(more)
            case Table(rows=rows):
                lines.extend("\t".join(row) for row in rows)
    return "\n".join(lines)


def straighten(quads: Sequence[tuple[Quad, str]]) -> list[Piece]:
    """Turn slanted corners into upright pieces, as if the sheet had lain straight on the scanner.

    The slant is the middle one of the long pieces, because short ones are measured badly.
    """
    slants = [
        math.atan2(right[1] - left[1], right[0] - left[0])
        for (left, right, _, lower), _ in quads
        if math.dist(left, right) > 3 * math.dist(left, lower)
    ]
    slant = median(slants) if slants else 0.0
    cosine, sine = math.cos(-slant), math.sin(-slant)
    pieces = []
    for quad, text in quads:
        x = sum(point[0] for point in quad) / 4
        y = sum(point[1] for point in quad) / 4
        x, y = x * cosine - y * sine, x * sine + y * cosine
        half_width = (math.dist(quad[0], quad[1]) + math.dist(quad[3], quad[2])) / 4
        half_height = (math.dist(quad[0], quad[3]) + math.dist(quad[1], quad[2])) / 4
        pieces.append(Piece(x - half_width, y - half_height, x + half_width, y + half_height, text))
    return pieces


def _write_block(block: Block) -> str:
    match block:
        case Heading(text=text, level=level):
            return f"{'#' * level} {text}"
        case Paragraph(lines=lines):
            return "\n".join(lines)
        case Table(rows=rows):
            cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
            cells.insert(1, ["---"] * len(rows[0]))
            return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _read_region(pieces: list[Piece], size: float) -> list[Block]:
    """Read one part of a page; ``size`` is the page's usual line height."""
    blocks: list[Block] = []
    plain: list[Piece] = []  # pieces that wait to be read line by line
    bands = _bands(pieces)
    while bands:
        strips = _strips(bands[0], size)
        if not strips:
            plain += bands.pop(0)
            continue
        run = bands.pop(0)
        while bands and (rest := _free(strips, bands[0], size)):
            strips = rest
            run += bands.pop(0)
        found = _read_columns(run, strips, size) or _read_table(run, size)
        if found is None:
            plain += run
            continue
        blocks += _read_lines(plain, size)
        blocks += found
        plain = []
    return blocks + _read_lines(plain, size)


def _bands(pieces: list[Piece]) -> list[list[Piece]]:
    """Group pieces whose heights touch, chains included: columns with shifted lines are one band."""
    bands: list[list[Piece]] = []
    bottom = -math.inf
    for piece in sorted(pieces, key=lambda piece: piece.top):
        if bands and piece.top < bottom - 0.2 * piece.height:
            bands[-1].append(piece)
            bottom = max(bottom, piece.bottom)
        else:
            bands.append([piece])
            bottom = piece.bottom
    return bands


def _strips(pieces: list[Piece], size: float) -> list[Strip]:
    """The empty strips between pieces, from left to right."""
    ordered = sorted(pieces, key=lambda piece: piece.left)
    strips, edge = [], ordered[0].right
    for piece in ordered[1:]:
        if piece.left - edge >= MIN_STRIP * size:
            strips.append((edge, piece.left))
        edge = max(edge, piece.right)
    return strips


def _free(strips: list[Strip], pieces: list[Piece], size: float) -> list[Strip]:
    """What is left of the strips when ``pieces`` lie across them."""
    for piece in pieces:
        parts = [part for a, b in strips for part in ((a, min(b, piece.left)), (max(a, piece.right), b))]
        strips = sorted({(a, b) for a, b in parts if b - a >= MIN_STRIP * size})
        # A strip beside the piece comes back as two equal parts or as one of the full width.
        strips = [
            (a, b) for a, b in strips if not any(c <= a and b <= d for c, d in strips if (c, d) != (a, b))
        ]
    return strips


def _read_columns(run: list[Piece], strips: list[Strip], size: float) -> list[Block] | None:
    """Read columns of prose one after the other, or return None when they are not prose."""
    edges = [-math.inf, *((a + b) / 2 for a, b in strips), math.inf]
    columns = [
        [piece for piece in run if left <= (piece.left + piece.right) / 2 < right]
        for left, right in pairwise(edges)
    ]
    columns = [column for column in columns if column]
    if len(columns) < 2 or not all(_is_prose(column, size) for column in columns):
        return None
    return [block for column in columns for block in _read_region(column, size)]


def _is_prose(column: list[Piece], size: float) -> bool:
    width = max(piece.right for piece in column) - min(piece.left for piece in column)
    filled = median(piece.width for piece in column)
    return len(column) >= 3 and width >= MIN_PROSE_WIDTH * size and filled >= MIN_PROSE_FILL * width


def _read_table(run: list[Piece], size: float) -> list[Block] | None:
    """Read the tables in a run and the lines around them, or return None when there is no table."""
    blocks: list[Block] = []
    lines: list[Piece] = []
    has_table = False
    for part in _split(_rows(run), TABLE_GAP * size):
        wide = [index for index, row in enumerate(part) if len(row) > 1]
        if len(wide) < 2:
            lines += [piece for row in part for piece in row]
            continue
        first, last = wide[0], wide[-1] + 1
        lines += [piece for row in part[:first] for piece in row]
        blocks += _read_lines(lines, size)
        blocks.append(_table(part[first:last]))
        lines = [piece for row in part[last:] for piece in row]
        has_table = True
    return blocks + _read_lines(lines, size) if has_table else None


def _table(rows: list[list[Piece]]) -> Table:
    """Put each piece into the column that it overlaps most.

    Rows with the usual number of pieces say where the columns are. Empty strips would not do: a head on the
    left and figures on the right of one column often leave more room between them than two columns do.
    """
    usual = max(multimode(len(row) for row in rows if len(row) > 1))
    full = [row for row in rows if len(row) == usual]
    columns = [
        (min(row[index].left for row in full), max(row[index].right for row in full))
        for index in range(usual)
    ]
    table = []
    for row in rows:
        cells: list[list[str]] = [[] for _ in columns]
        for index, piece in enumerate(row):
            overlaps = [min(piece.right, right) - max(piece.left, left) for left, right in columns]
            cells[index if len(row) == usual else overlaps.index(max(overlaps))].append(piece.text)
        table.append(tuple(" ".join(cell) for cell in cells))
    return Table(tuple(table))


def _rows(pieces: list[Piece]) -> list[list[Piece]]:
    """Group pieces that stand on the same line, from the top down and from left to right."""
    rows: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.top + piece.bottom) / 2):
        if rows:
            first = rows[-1][0]
            shared = min(first.bottom, piece.bottom) - max(first.top, piece.top)
            if shared >= 0.5 * min(first.height, piece.height):
                rows[-1].append(piece)
                continue
        rows.append([piece])
    return [sorted(row, key=lambda piece: piece.left) for row in rows]


def _split(rows: list[list[Piece]], gap: float) -> list[list[list[Piece]]]:
    """Split rows where more than ``gap`` lies between two of them."""
    parts: list[list[list[Piece]]] = []
    for row in rows:
        if parts and _gap(parts[-1][-1], row) <= gap:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


def _gap(above: list[Piece], below: list[Piece]) -> float:
    return min(piece.top for piece in below) - max(piece.bottom for piece in above)


def _read_lines(pieces: list[Piece], size: float) -> list[Block]:
    """Read line by line: headings by their height, paragraphs by the gaps between lines."""
    rows = _rows(pieces)
    gaps = sorted(_gap(above, below) for above, below in pairwise(rows))
    # Text that is set wide apart has its own usual gap. Not the middle one: in a letter most gaps may lie
    # between paragraphs.
    usual = max(PARAGRAPH_GAP * size, 1.5 * gaps[len(gaps) // 4]) if gaps else 0.0
    blocks: list[Block] = []
    for part in _split(rows, usual):
        lines: list[str] = []
        for row in part:
            text = " ".join(piece.text for piece in row)
            height = median(piece.height for piece in row) / size
            if height < HEADING:
                lines.append(text)
                continue
            if lines:
                blocks.append(Paragraph(tuple(lines)))
                lines = []
            blocks.append(Heading(text, 1 if height >= FIRST_HEADING else 2))
        if lines:
            blocks.append(Paragraph(tuple(lines)))
    return blocks
