"""Draw the sample documents that coatcheck-ocr ships, and the list of words that each one holds.

Run it only to change the samples: ``python packages/provider-ocr/samples_src/make_samples.py``. It needs
Pillow and, from Debian, ``fonts-liberation`` and ``fonts-noto-cjk`` (both under the SIL Open Font License).
Only pixels go into the repository, no font does. Everything in the documents is made up; the same input
always gives the same files.
"""

import json
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont

TARGET = Path(__file__).resolve().parents[1] / "src" / "coatcheck_ocr" / "samples"
LATIN = Path("/usr/share/fonts/truetype/liberation")
CJK = Path("/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc")
SIMPLIFIED_CHINESE = 2  # index of the face inside the collection

DPI = 130
WIDTH, HEIGHT = round(8.27 * DPI), round(11.69 * DPI)
MARGIN = 100
INK, PAPER = 20, 255


class Sample(NamedTuple):
    """A finished document: its file name, what it shows, its pages and its words in reading order."""

    name: str
    title: str
    pages: list[Image.Image]
    words: str


def font(size: int, *, bold: bool = False, serif: bool = False) -> ImageFont.FreeTypeFont:
    """A Latin font of the given size in pixels."""
    family = "LiberationSerif" if serif else "LiberationSans"
    return ImageFont.truetype(str(LATIN / f"{family}-{'Bold' if bold else 'Regular'}.ttf"), size)


def cjk(size: int) -> ImageFont.FreeTypeFont:
    """A font with Chinese characters of the given size in pixels."""
    return ImageFont.truetype(str(CJK), size, index=SIMPLIFIED_CHINESE)


class Page:
    """A sheet of paper that is written on from the top down and cut off below the last line."""

    def __init__(self, width: int = WIDTH, height: int = HEIGHT) -> None:
        """Take an empty sheet of this size in pixels."""
        self.image = Image.new("L", (width, height), PAPER)
        self.draw = ImageDraw.Draw(self.image)
        self.y = float(MARGIN)

    def line(self, text: str, face: Any, *, x: float = MARGIN, leading: float = 1.5) -> None:
        """Write one line at ``x`` and move down."""
        self.draw.text((x, self.y), text, font=face, fill=INK)
        self.y += face.size * leading

    def prose(self, text: str, face: Any, *, x: float = MARGIN, width: float = WIDTH - 2 * MARGIN) -> None:
        """Write paragraphs, which blank lines separate in ``text``, each wrapped to ``width``."""
        for paragraph in text.strip().split("\n\n"):
            joint = "" if "。" in paragraph else " "  # Chinese lines join without a space
            self.paragraph(joint.join(paragraph.split()), face, x=x, width=width)

    def paragraph(self, text: str, face: Any, *, x: float, width: float) -> None:
        """Write one paragraph and leave a blank line below it."""
        current = ""
        for piece in text.split(" ") if " " in text else list(text):
            joint = " " if current and " " in text else ""
            if self.draw.textlength(current + joint + piece, font=face) > width:
                self.line(current, face, x=x)
                current = piece
            else:
                current += joint + piece
        self.line(current, face, x=x)
        self.skip(face.size)

    def skip(self, pixels: float) -> None:
        """Leave empty space."""
        self.y += pixels

    def cut(self) -> Image.Image:
        """The sheet without the empty part below: less paper to look at, so tests and demo are quick."""
        return self.image.crop((0, 0, self.image.width, min(self.image.height, round(self.y) + MARGIN)))

    def rule(self, x: float = MARGIN, right: float = WIDTH - MARGIN) -> None:
        """Draw a thin line across."""
        self.draw.line((x, self.y, right, self.y), fill=INK, width=2)

    def table(self, rows: list[list[str]], edges: list[float], face: Any, *, ruled: bool = True) -> None:
        """Draw a table whose columns lie between ``edges``; cells that are numbers stand on the right."""
        height = face.size * 2
        top = self.y
        for row in rows:
            if ruled:
                self.rule(edges[0], edges[-1])
            for left, right, cell in zip(edges[:-1], edges[1:], row, strict=True):
                number = cell.replace(",", "").replace(".", "").isdigit()
                x = right - 14 - self.draw.textlength(cell, font=face) if number else left + 14
                self.draw.text((x, self.y + face.size * 0.4), cell, font=face, fill=INK)
            self.y += height
        if ruled:
            self.rule(edges[0], edges[-1])
            for x in edges:
                self.draw.line((x, top, x, self.y), fill=INK, width=2)
        self.skip(face.size * 1.5)


def invoice() -> Sample:
    """An invoice with a block of facts, a table of items and a total."""
    page = Page()
    page.line("INVOICE", font(54, bold=True))
    page.skip(20)
    for name, value in (("Number", "2024-0117"), ("Date", "17 January 2024"), ("Due", "16 February 2024")):
        page.draw.text((MARGIN + 230, page.y), value, font=font(24), fill=INK)
        page.line(name, font(24, bold=True))
    page.skip(30)
    page.line("Bill to", font(24, bold=True))
    page.line("The Sample Library", font(24))
    page.line("1 Example Street, Testville", font(24))
    page.skip(50)
    rows = [
        ["Item", "Quantity", "Price", "Amount"],
        ["Copy paper, box", "12", "23.50", "282.00"],
        ["Pencils, hard", "40", "0.80", "32.00"],
        ["Binding, linen", "6", "14.25", "85.50"],
        ["Delivery", "1", "19.00", "19.00"],
    ]
    page.table(rows, [MARGIN, 480, 640, 800, WIDTH - MARGIN], font(24))
    page.line("Total 418.50", font(30, bold=True), x=690)
    page.skip(40)
    page.prose("Payment within thirty days. Please quote the number with your transfer.", font(24))
    words = """
        INVOICE Number 2024-0117 January February Library Testville Quantity Amount paper 282.00
        Pencils 32.00 Binding 85.50 Delivery 19.00 Total 418.50 Payment transfer
    """
    return Sample("invoice.png", "Invoice", [page.cut()], words)


def letter() -> Sample:
    """A short letter, set in a serif face."""
    page = Page()
    face = font(27, serif=True)
    for line in ("Sample Observatory", "Hill Road 7", "Testville"):
        page.line(line, face)
    page.skip(40)
    page.line("3 March 2024", face, x=740)
    page.skip(40)
    page.line("Dear visitor,", face)
    page.skip(25)
    page.prose(
        """
thank you for your question about the evening tours. The dome opens every Friday after sunset, as
long as the sky is clear. If clouds come up, the tour takes place in the lecture hall instead.

Children are welcome in company of an adult. Bring a warm jacket, because the dome is not heated
and the instruments work best at outside temperature.

We look forward to showing you the rings of Saturn and the craters of the Moon.
        """,
        face,
    )
    page.line("With kind regards,", face)
    page.skip(70)
    page.line("The guides of the observatory", face)
    words = """
        Observatory Testville March visitor question evening dome Friday sunset clouds lecture
        Children jacket instruments temperature Saturn craters regards guides
    """
    return Sample("letter.pdf", "Letter", [page.cut()], words)


def table() -> Sample:
    """A page that is mostly one ruled table."""
    page = Page()
    page.line("Rainfall by station", font(40, bold=True))
    page.prose("Millimetres per quarter, measured at the five stations of the valley.", font(24))
    rows = [
        ["Station", "Spring", "Summer", "Autumn", "Winter"],
        ["Bridge", "182", "241", "205", "148"],
        ["Forest", "214", "267", "233", "171"],
        ["Harbour", "156", "198", "187", "139"],
        ["Meadow", "190", "252", "219", "160"],
        ["Summit", "305", "388", "342", "297"],
    ]
    page.table(rows, [MARGIN, 340, 480, 620, 760, 900], font(26))
    page.prose("The gauge at the summit was replaced in autumn.", font(24))
    words = """
        Rainfall station Millimetres quarter Station Spring Summer Autumn Winter Bridge 182 241 205 148
        Forest 214 Harbour 156 Meadow 190 Summit 305 388 342 297 gauge replaced
    """
    return Sample("table.png", "Table", [page.cut()], words)


def chinese() -> Sample:
    """A page of Chinese text with some digits in it."""
    page = Page()
    page.line("图书馆开放通知", cjk(46))
    page.skip(20)
    page.prose(
        """
各位读者：为了方便大家学习，图书馆从五月一日起延长开放时间。
周一至周五上午八点开门，晚上十点关门。周末开放时间不变。

阅览室共有座位260个，请保持安静，不要占座。
借书需要出示读者证，每人最多可以借10本，期限为三十天。

电子资源可以通过校园网访问，也可以在二楼的自助终端上查询。
如有问题，请到一楼服务台咨询。
        """,
        cjk(28),
    )
    page.line("图书馆办公室", cjk(28), x=700)
    page.line("2024年4月25日", cjk(28), x=700)
    words = """
        图书馆开放通知 读者 方便大家学习 五月一日 开放时间 上午八点 周末 阅览室 260 保持安静 读者证
        三十天 电子资源 校园网 自助终端 服务台 图书馆办公室 2024年4月25日
    """
    return Sample("chinese.png", "Chinese text", [page.cut()], words)


def columns() -> Sample:
    """A heading across the page, then two columns of prose."""
    page = Page()
    heading, title = "The slow return of the river", font(44, bold=True, serif=True)
    page.line(heading, title, x=(WIDTH - page.draw.textlength(heading, font=title)) / 2)
    page.skip(40)
    top, face, width = page.y, font(24, serif=True), 410
    page.prose(
        """
For sixty years the stream ran through a concrete channel behind the market. Nobody walked there,
and hardly anyone knew its name.

Work began upstream, where the banks were wide enough. Excavators broke the channel into pieces and
the water found a bed of its own within a single winter.

Engineers had drawn a gentle curve. The river chose a sharper one and left a gravel island in the
middle.
        """,
        face,
        width=width,
    )
    left_end, page.y = page.y, top
    page.prose(
        """
Fish were the first to notice. Minnows arrived in spring, then a pair of kingfishers, which nest in
the steep clay on the eastern side.

Children came next. A wooden footbridge, meant as a shortcut, turned into a favourite place for
counting dragonflies.

The last metres of concrete will be removed next year. The market is going to keep one slab as a
bench, so that people remember what was here.
        """,
        face,
        x=WIDTH - MARGIN - width,
        width=width,
    )
    page.y = max(page.y, left_end)
    words = """
        return river sixty concrete market upstream Excavators winter Engineers gravel island Fish
        Minnows kingfishers Children footbridge dragonflies metres slab bench remember
    """
    return Sample("columns.png", "Two columns", [page.cut()], words)


def rotated() -> Sample:
    """A page that went through the scanner sideways and a little askew, with grey paper and specks."""
    page = Page()
    page.line("Minutes of the workshop", font(40, bold=True))
    page.skip(20)
    page.prose("The workshop discussed how to water the garden during dry months.", font(26))
    for text in (
        "1. The cistern holds nine thousand litres and is filled by the roof.",
        "2. Tomatoes and beans are watered before breakfast.",
        "3. Volunteers check the pump every Wednesday.",
        "4. A second barrel will be bought in September.",
    ):
        page.line(text, font(26), leading=1.8)
    page.skip(30)
    page.prose("Next meeting: first Monday of October, in the greenhouse.", font(26))
    scan = page.cut().rotate(1.3, resample=Image.Resampling.BICUBIC, fillcolor=PAPER)
    scan = scan.point(lambda tone: tone * 235 // 255)
    specks, chance = ImageDraw.Draw(scan), random.Random(7)
    for _ in range(150):
        x, y = chance.randrange(scan.width), chance.randrange(scan.height)
        specks.ellipse((x, y, x + 1, y + 1), fill=chance.randrange(90, 190))
    words = """
        Minutes workshop garden months cistern thousand litres Tomatoes breakfast Volunteers pump
        Wednesday barrel September meeting October greenhouse
    """
    return Sample("rotated.png", "Rotated scan", [scan.transpose(Image.Transpose.ROTATE_270)], words)


def report() -> Sample:
    """Three pages, so that progress has something to show."""
    face = font(26)
    first = Page()
    first.line("Annual report", font(50, bold=True))
    first.skip(30)
    first.prose(
        """
This report describes a year at the community workshop: what was built, what was repaired and what
it cost.

Membership grew from eighty to ninety-four. The carpentry room was used on three hundred days, the
pottery kiln on seventy.

The roof is tight again. Its repair took most of August and was paid from savings.
        """,
        face,
    )
    second = Page()
    second.line("Income and expenses", font(38, bold=True))
    second.skip(20)
    rows = [
        ["Position", "Income", "Expense"],
        ["Membership fees", "9,400", "0"],
        ["Courses", "5,250", "1,120"],
        ["Materials", "0", "3,980"],
        ["Roof repair", "0", "6,700"],
    ]
    second.table(rows, [MARGIN, 500, 700, 900], face, ruled=False)
    third = Page()
    third.line("Outlook  展望", cjk(40))
    third.skip(20)
    third.prose("明年我们计划开设陶艺课程，并更换旧的电锯。", cjk(28))
    third.prose("Next year a pottery course starts, and the old bandsaw will be replaced.", face)
    words = """
        Annual report community Membership ninety-four carpentry kiln August savings Income expenses
        Position fees 9,400 Courses 5,250 1,120 Materials 3,980 repair 6,700 Outlook 展望
        明年我们计划 陶艺课程 电锯 pottery bandsaw
    """
    return Sample("report.pdf", "Report of three pages", [first.cut(), second.cut(), third.cut()], words)


def black_and_white(page: Image.Image) -> Image.Image:
    """The page at twice the size in pure black and white, as a fax or an office scanner makes it."""
    large = page.resize((page.width * 2, page.height * 2), Image.Resampling.BICUBIC)
    return large.point(lambda tone: 255 if tone > 150 else 0, mode="1")


def save(sample: Sample) -> None:
    """Write one sample: sixteen greys as PNG, black and white as PDF, to keep the files small."""
    path = TARGET / sample.name
    if path.suffix == ".png":
        sample.pages[0].quantize(16).save(path, optimize=True, dpi=(DPI, DPI))
        return
    first, *others = [black_and_white(page) for page in sample.pages]
    born = time.gmtime(0)  # a fixed date: the same input gives the same bytes
    first.save(path, save_all=True, append_images=others, resolution=2 * DPI, creationDate=born, modDate=born)


def main() -> None:
    """Write all samples and ``words.json``."""
    index = {}
    for make in (invoice, letter, table, chinese, columns, rotated, report):
        sample = make()
        save(sample)
        words = sample.words.split()
        index[sample.name] = {"title": sample.title, "pages": len(sample.pages), "words": words}
    text = json.dumps(index, ensure_ascii=False, indent=1)
    (TARGET / "words.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
