"""report.html in headless Chromium, clicked through as a reader would: from the overview down to one episode."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from divopd.runlog import read_table
from html_page import HOSTILE, SHOWN, make_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver (Debian: chromium, chromium-driver)"
    ),
]
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip
SETTING, _, METHOD, _ = SHOWN.split("/")
PATIENCE = 120  # seconds that a view may take on a busy machine


class Reader:
    """A browser that shows one page."""

    def __init__(self, page: Path, profile: Path) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in (*FLAGS, f"--user-data-dir={profile}", "--window-size=1280,1000"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.page = page
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.driver.get(page.as_uri())
        self.wait("#/")

    def js(self, script: str, *arguments):
        return self.driver.execute_script(f"return {script}", *arguments)

    def wait(self, view: str) -> None:
        """Until this view (the address after #) is drawn."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, PATIENCE).until(lambda _: self.js("document.body.dataset.ready") == view)
        assert not self.js("document.querySelector('#trouble').textContent")

    def all(self, css: str) -> list:
        """Elements that are shown."""
        from selenium.webdriver.common.by import By

        return [found for found in self.driver.find_elements(By.CSS_SELECTOR, css) if found.is_displayed()]

    def one(self, css: str):
        [found] = self.all(css)
        return found

    def point_at(self, element) -> str:
        """What the page says of an element when the pointer is on its middle."""
        from selenium.webdriver.common.action_chains import ActionChains

        self.js("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(self.driver).move_to_element(element).perform()
        return self.tip()

    def tip(self) -> str:
        return self.js("document.querySelector('#tip').hidden ? '' : document.querySelector('#tip').textContent")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    page = make_page(tmp_path_factory.mktemp("html") / "demo")
    reader = Reader(page, tmp_path_factory.mktemp("profile"))
    yield reader
    reader.driver.quit()


def follow(reader: Reader, element) -> None:
    """Click a link and wait for what it shows."""
    view = element.get_attribute("href").partition("#")[2]
    reader.js("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()
    reader.wait(f"#{view}")


def lines(reader: Reader) -> set[str]:
    """Names of the lines that the charts in view draw."""
    return {line.get_attribute("data-name") for line in reader.all(".plot g.line[data-name]")}


def test_a_reader_clicks_through(reader: Reader):
    methods = {"vanilla", "divopd", "divopd_recovery"}
    assert lines(reader) == {f"{method}/0" for method in methods} and len(reader.all(".plot svg")) == 3
    # a filter takes away lines and rows
    box = reader.one("input[name=method][value=vanilla]")
    box.click()
    assert lines(reader) == {"divopd/0", "divopd_recovery/0"}
    assert len(reader.all("tr[data-method=divopd]")) == 3 and not reader.all("tr[data-method=vanilla]")
    # setting: the pointer on a mark tells its numbers, which are those of curves.csv
    follow(reader, reader.one(f"figure a[href='#/setting/{SETTING}']"))
    assert lines(reader) == {"divopd/0", "divopd_recovery/0"}  # the filter stays
    curves = pd.read_csv(reader.page.parent / "curves.csv")
    curve = curves[(curves["setting"] == SETTING) & (curves["method"] == "divopd")]
    marks = reader.all("g.line[data-name='divopd/0'] path[transform]")
    assert len(marks) == len(curve)
    for mark, row in list(zip(marks, curve.itertuples(), strict=True))[1:3]:
        said = reader.point_at(mark)
        assert said.splitlines() == [
            "DivOPD, seed 0",
            f"version {row.version}: {100 * row.success:.1f} % ({row.successes} of {row.episodes})",
            f"95 % Wilson interval {100 * row.wilson_low:.1f} % to {100 * row.wilson_high:.1f} %",
        ]
    # run, then an update
    follow(reader, reader.one(f"section[data-setting='{SETTING}'] a[href='#/run/{SETTING}/{METHOD}/0']"))
    assert reader.one("h1").text == "DivOPD + R, seed 0" and len(reader.all("#metrics figure")) == 14
    choose(reader, "#chosen select", "9", f"#/run/{SETTING}/{METHOD}/0/update/9")
    turns = read_table(reader.page.parent / SHOWN, "turns").to_pandas()
    assert int(reader.one("li[data-fate=s] .cell").text) == (turns["selected_at"] == 9).sum() == 64
    chosen = turns[turns["selected_at"] == 9]
    shown = {(row.text.split()[0], cell.text) for row in reader.all("table[data-name=map] tbody tr")
             for cell in row.find_elements("css selector", ".fate-s")}  # fmt: skip
    names = chosen[["explorer_batch", "task_index", "run"]].astype(str).agg(".".join, axis=1)
    assert shown == set(zip(names, chosen["turn"].astype(str), strict=True))
    assert "s(u)" in reader.point_at(reader.all("table[data-name=map] .cell")[0])
    reader.js("[...document.querySelectorAll('.bar button')].find((b) => b.textContent.startsWith('next')).click()")
    reader.wait(f"#/run/{SETTING}/{METHOD}/0/update/10")


def choose(reader: Reader, css: str, words: str, view: str) -> None:
    from selenium.webdriver.support.select import Select

    Select(reader.one(css)).select_by_visible_text(words)
    reader.wait(view)


def test_episodes_show_the_logged_numbers(reader: Reader):
    run = f"#/run/{SETTING}/{METHOD}/0"
    reader.js("location.hash = arguments[0]", f"{run}/episode/0")
    reader.wait(f"{run}/episode/0")
    told = read_table(reader.page.parent / SHOWN, "transcripts").to_pandas()
    first = told[(told["explorer_batch"] == told["explorer_batch"].min()) & (told["task_index"] == 0)]
    boxes = reader.js(
        "[...document.querySelectorAll('.token')].map((t) => [t.textContent, t.dataset.difference || null])"
    )
    scored = first["student_logprobs"].notna()
    want = [t for tokens in first["tokens"] for t in tokens]
    assert [text for text, _ in boxes] == want
    differences = np.concatenate([np.subtract(*pair) for pair in
                                  first.loc[scored, ["student_logprobs", "teacher_logprobs"]].to_numpy()])  # fmt: skip
    assert [float(d) for _, d in boxes if d] == pytest.approx(differences.tolist(), abs=2e-3)
    # orange where the student is surer, blue where the teacher is
    token = max(reader.all(".token[data-difference]"), key=lambda t: float(t.get_attribute("data-difference")))
    assert token.value_of_css_property("background-color").startswith("rgba(213, 94, 0")
    said = reader.point_at(token)
    assert said.startswith("student ") and "\nteacher " in said and "\ndifference +" in said
    # a prompt is shown as text, whatever it holds
    assert reader.all(".prompt")[0].text == HOSTILE and reader.js("window.bad === undefined")
    fates = [turn.text for turn in reader.all(".turn h4")]
    turns = read_table(reader.page.parent / SHOWN, "turns").to_pandas()
    row = turns.merge(first[["explorer_batch", "task_index", "run", "turn"]]).sort_values("turn").iloc[0]
    assert (
        f"selected at update {row.selected_at}" if row.selected_at >= 0 else f"at update {row.dropped_at}"
    ) in fates[0]


def test_keys_alone_will_do(reader: Reader):
    from selenium.webdriver.common.keys import Keys

    reader.js("location.hash = arguments[0]", f"#/setting/{SETTING}")
    reader.wait(f"#/setting/{SETTING}")
    plot = reader.one(f"section[data-setting='{SETTING}'] .plot svg")
    plot.send_keys(Keys.ARROW_RIGHT)
    first = reader.tip()
    plot.send_keys(Keys.ARROW_RIGHT)
    second = reader.tip()
    assert "version 0:" in first and "version 8:" in second
    plot.send_keys(Keys.ARROW_DOWN)
    assert "version 8:" in reader.tip() and reader.tip().splitlines()[0] != second.splitlines()[0]
    plot.send_keys(Keys.ESCAPE)
    assert reader.tip() == ""


def test_tables_sort_by_exact_values(reader: Reader):
    reader.js("location.hash = '#/tables'")
    reader.wait("#/tables")
    reader.js("document.querySelectorAll('section[data-view=tables] details').forEach((d) => { d.open = true; })")
    frame = pd.read_csv(reader.page.parent / "tables" / "main.csv", dtype=str, keep_default_na=False)
    column = list(frame).index("final5_mean")
    table = "section[data-view=tables] table[data-csv=main]"
    values = f"[...document.querySelectorAll('{table} tbody tr')].map((r) => r.cells[{column}].dataset.value)"
    head = reader.all(f"{table} th button")[column]
    for reverse in (False, True):
        reader.js("arguments[0].click()", head)
        assert reader.js(values) == sorted(frame["final5_mean"], key=float, reverse=reverse)
    assert reader.one(f"{table} th[aria-sort]").get_attribute("aria-sort") == "descending"


def test_it_fits_a_phone_and_fetched_nothing(reader: Reader):
    phone = {"width": 360, "height": 780, "deviceScaleFactor": 2, "mobile": True}
    reader.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    for view in ("#/", f"#/setting/{SETTING}", f"#/run/{SETTING}/{METHOD}/0", "#/tables"):
        reader.js("location.hash = arguments[0]", view)
        reader.wait(view)
        # what is wider than the page scrolls within itself
        assert reader.js("document.documentElement.scrollWidth") == 360, view
    assert reader.js("performance.getEntriesByType('resource').length") == 0
    assert [entry for entry in reader.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
