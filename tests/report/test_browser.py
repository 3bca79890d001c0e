"""The page in a real browser: it takes Playwright and a Chromium on the path."""

import shutil
from itertools import pairwise

import numpy as np
import pytest

from flwr_asyncdrop.report import write_report
from flwr_asyncdrop.report.comparison import compare
from flwr_asyncdrop.report.series import read_series
from flwr_asyncdrop.report.tables import columns
from tests.report.histories import history, write

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

BAD = "fedbuff,x=<img src=x onerror=alert(1)>,y=0.0000000001,z=trimmed-mean"
RUNS = {
    "fedavg": [0.1, 0.15, 0.25, 0.3, 0.45, 0.5, 0.55, 0.6],
    BAD: [0.2, 0.5, 0.6, 0.7],
    "hetero-asyncdrop": [0.3, 0.55, 0.7, 0.8],
    "asyncdrop": [0.28, 0.56, 0.72, 0.76],
}
TARGET = 0.5


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    for place, (label, values) in enumerate(RUNS.items()):
        for seed in range(5):
            shift = 0.07 * ((seed * 3 + place) % 5 - 2) / 2
            lines = history(
                label,
                seed,
                [value + shift for value in values],
                megabytes_per_second=0.37 + 0.11 * place + 0.05 * seed,
                watts=310 - 70 * place + 20 * seed,
            )
            write(out / label / f"seed-{seed}", lines)
    return out


@pytest.fixture(scope="module")
def url(results, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    return write_report([results], out, target=TARGET).as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield found
        found.close()


@pytest.fixture
def opened(browser, url):
    """Return what opens the page, and check that it was quiet to the end."""
    noise, contexts = [], []

    pages = [url]

    def requested(request):
        if request.url not in pages and not request.url.startswith("data:"):
            noise.append(request.url)

    def opener(width=1024, scheme="light", page_of=None, **more):
        if page_of is not None:
            pages.append(page_of.as_uri())
        viewport = {"width": width, "height": 800}
        context = browser.new_context(viewport=viewport, color_scheme=scheme, **more)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(5000)
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("dialog", lambda dialog: noise.append(dialog.message))
        page.on("request", requested)
        page.goto(pages[-1])
        return page

    yield opener
    for context in contexts:
        context.close()
    assert noise == []


def cells(page, key, what):
    """Return a property of the cells of a column, in the order of the lines."""
    return page.evaluate(
        f"""() => {{
            const headings = [...document.querySelectorAll("th[data-key]")];
            const place = headings.findIndex((each) => each.dataset.key === "{key}");
            const lines = [...document.querySelectorAll("#results tbody tr")];
            return lines.map((line) => line.cells[place].{what});
        }}"""
    )


def texts(page, key):
    return cells(page, key, "textContent")


def bold(page, key):
    return cells(page, key, "classList.contains('best')")


def x_label(page):
    return page.locator("#plot .axes > text").all_text_contents()[-2]


@pytest.mark.parametrize("width", [1024, 1280, 1920])
def test_no_column_of_the_table_is_cut(opened, width):
    page = opened(width, "light")
    inside = "each => each.scrollWidth - each.clientWidth"
    assert page.locator(".scroll").first.evaluate(inside) <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1024, 1920])
def test_it_fits_and_does_what_it_is_told(opened, width, scheme):
    page = opened(width, scheme)
    wide = "[document.documentElement.scrollWidth, innerWidth]"
    content, screen = page.evaluate(wide)
    assert content <= screen
    lines = page.locator("#plot .series")
    assert lines.count() == len(RUNS)
    button = page.get_by_role("button", name="hetero-asyncdrop")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert lines.count() == len(RUNS) - 1
    page.get_by_role("radio", name="bytes").check()
    assert x_label(page) == "sent and received (MB)"
    page.get_by_role("radio", name="updates").check()
    assert x_label(page) == "updates merged"
    page.get_by_role("radio", name="energy").check()
    assert x_label(page) == "energy (kJ)"
    page.locator("#target").fill("60")
    assert page.locator("#plot .target text").text_content() == "target 60.00%"
    page.get_by_text("What made it").scroll_into_view_if_needed()
    for summary in page.locator("summary").all():
        summary.click()
    content, screen = page.evaluate(wide)
    assert content <= screen
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")


def test_labels_beside_the_lines_do_not_overlap(opened):
    page = opened(1024)
    boxes = [each.bounding_box() for each in page.locator("#plot .label text").all()]
    assert len(boxes) == len(RUNS)
    boxes.sort(key=lambda box: box["y"])
    for above, below in pairwise(boxes):
        assert below["y"] - above["y"] >= 14
    assert all(box["x"] + box["width"] <= 1024 for box in boxes)


def test_lines_that_are_too_many_for_labels_beside_them_have_none(opened, tmp_path):
    """They would end below the plot; the buttons above it name all."""
    for number in range(40):
        label = f"asyncdrop,drop-rate=0.{number:02}"
        write(tmp_path / label / "seed-0", history(label, 0, (0.5, 0.6)))
    page = opened(1280, page_of=write_report([tmp_path], tmp_path / "report"))
    assert page.locator("#plot .series").count() == 40
    assert page.locator("#plot .label").count() == 0
    right = page.locator("#plot .axes line").first.get_attribute("x2")
    wide = page.locator("#plot").evaluate("plot => plot.viewBox.baseVal.width")
    assert float(right) > 0.9 * wide
    for button in page.locator("#legend button").all()[:30]:
        button.click()
    assert page.locator("#plot .label").count() == 10


@pytest.mark.parametrize("value", [0.3, 1e22, -7e-7])
def test_a_line_that_differs_from_the_target_in_its_last_bit_alone_is_drawn(
    opened, tmp_path, value
):
    """So many steps of so small a size were asked for that the page hung."""
    lines = history("fedbuff", 0, [value] * 2, metric="score")
    write(tmp_path / "fedbuff" / "seed-0", lines)
    out = tmp_path / "report"
    target = float(np.nextafter(value, np.inf))
    page = opened(page_of=write_report([tmp_path], out, target=target))
    assert page.locator("#plot .series").count() == 1
    assert page.locator("#plot .axes line").count() < 40


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([3e6, 1.2e6], ["1,500,000", "2,000,000", "2,500,000", "3,000,000"]),
        ([6e-6, 2e-6], ["2e-6", "3e-6", "4e-6", "5e-6", "6e-6"]),
        ([2e8, 5e7], ["5e+7", "1e+8", "1.5e+8", "2e+8"]),
        ([1.00000003, 1.0], ["1", "1.00000001", "1.00000002", "1.00000003"]),
        ([-0.0025, -0.001], ["-0.0025", "-0.002", "-0.0015", "-0.001"]),
    ],
)
def test_no_number_of_the_axis_is_cut(opened, tmp_path, values, ticks, width):
    lines = history("fedbuff", 0, values, metric="loss")
    write(tmp_path / "fedbuff" / "seed-0", lines)
    out = tmp_path / "report"
    page = opened(width, page_of=write_report([tmp_path], out, target=values[-1]))
    numbers = page.locator("#plot .axes > text[text-anchor=end]")
    assert numbers.all_text_contents() == ticks
    title = page.locator("#plot .axes > text[transform]").bounding_box()
    for number in numbers.all():
        assert number.bounding_box()["x"] >= title["x"] + title["width"]


@pytest.mark.parametrize("target", [0.2, 0.4321, 0.56, 0.62, 0.7777, 0.99, TARGET])
def test_the_table_follows_the_target_as_the_report_would(opened, results, target):
    page = opened()
    page.locator("#target").fill("1")
    page.locator("#target").fill(str(100 * target))
    table = compare(read_series([results]), target, "hetero-asyncdrop")
    for column in columns(table):
        assert texts(page, column.key) == list(column.texts)
        assert bold(page, column.key) == list(column.best)
        heading = page.locator(f"th[data-key={column.key}]")
        assert heading.text_content().strip() == column.title
    assert page.locator("#moved").is_visible() == (target != TARGET)


def test_a_target_that_makes_no_sense_changes_nothing(opened):
    page = opened()
    before = texts(page, "seconds")
    for text in ("", "0", "101", "-3"):
        page.locator("#target").fill(text)
        assert page.locator("#target").get_attribute("aria-invalid") == "true"
        assert texts(page, "seconds") == before
    page.locator("#reset").click()
    assert page.locator("#target").input_value() == "50"
    assert page.locator("#target").get_attribute("aria-invalid") == "false"


def test_the_keyboard_does_it_all(opened):
    page = opened()
    page.get_by_role("button", name="fedavg").focus()
    page.keyboard.press("Space")
    assert page.locator("#plot .series").count() == len(RUNS) - 1
    page.locator("#plot").focus()
    page.keyboard.press("End")
    page.keyboard.press("Home")
    for _ in range(25):
        page.keyboard.press("ArrowRight")
    # Half of the 40 s that are left: the second evaluation, the mean of five seeds.
    spoken = page.locator("#spoken").text_content()
    assert spoken.startswith("20.0 s: asyncdrop: 56.00% (49.00% to 63.00%)")
    assert page.locator("#readout").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#readout").is_hidden()


def test_the_pointer_shows_values_and_labels_as_text(opened):
    page = opened()
    page.locator("#plot").hover(position={"x": 150, "y": 100})
    assert BAD in page.locator("#readout").text_content()
    assert page.locator("img[src=x]").count() == 0


def test_the_plot_says_what_is_to_be_seen(opened):
    page = opened()
    said = page.locator("#plot").get_attribute("aria-label")
    assert said.startswith("accuracy against time: fedavg reaches 50.00% after ")
    assert "hetero-asyncdrop reaches 50.00% after" in said
    assert "ends at 80.00%." in said


def test_a_click_on_a_heading_sorts(opened):
    page = opened()
    page.get_by_role("button", name="final accuracy").click()
    assert texts(page, "label")[0] == "fedavg"
    page.get_by_role("button", name="final accuracy").click()
    assert texts(page, "label")[0] == "hetero-asyncdrop"


def test_what_has_no_number_is_last_in_either_order(opened):
    page = opened()
    page.locator("#target").fill("72")  # which fedavg does not reach
    heading = page.locator("th[data-key=seconds] button")
    orders = []
    for _ in range(2):
        heading.click()
        orders.append(texts(page, "label"))
    assert [each[-1] for each in orders] == ["fedavg"] * 2
    assert orders[0][:-1] == orders[1][-2::-1]


def test_without_a_script_picture_and_table_remain(opened):
    page = opened(java_script_enabled=False)
    assert page.locator("#static img").first.is_visible()
    assert page.locator("#interactive").is_hidden()
    assert page.locator("#results tbody tr").count() == len(RUNS)


def test_what_is_printed_has_the_plot_and_no_controls(opened):
    page = opened()
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator("#plot").is_visible()
    assert page.locator(".controls").is_hidden()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(255, 255, 255)"


A4 = 718  # pixels between margins of a centimetre


def test_what_is_printed_fits_on_paper(opened):
    page = opened(A4)
    page.emulate_media(media="print")
    # As it was drawn for a wide screen: printing does not draw it again.
    drawn = 'each => { each.setAttribute("viewBox", "0 0 1200 500"); }'
    page.locator("#plot").evaluate(drawn)
    page.locator("#plot").evaluate('each => { each.setAttribute("height", "500"); }')
    box = page.locator("#plot").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(1200 / 500, rel=0.02)
    assert page.evaluate("document.documentElement.scrollWidth") == A4
    assert page.get_by_text("Arrow keys").is_hidden()


def test_what_is_folded_is_printed_without_a_script_too(opened):
    page = opened(java_script_enabled=False)
    folded = page.locator("details:not([open]) img, details:not([open]) .made")
    assert not any(each.is_visible() for each in folded.all())
    page.emulate_media(media="print")
    assert folded.count() > len(RUNS) - 1
    assert all(each.bounding_box()["height"] > 0 for each in folded.all())
