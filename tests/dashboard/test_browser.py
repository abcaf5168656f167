"""The page in a real browser, headless: live curves, filter, clients, hostile names, a phone. Its console is empty."""

from __future__ import annotations

import shutil
import time

import pytest
from tests.dashboard.runs import TOKEN, Served, begin, one_round, write

selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="Chromium or its driver is not installed here")
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage --disable-extensions --window-size=1300,1000"""
EVIL = "<img src=x onerror='window.hit=1'><script>window.hit=1</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium with a new and empty profile, ended by its driver."""
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    found.set_script_timeout(120)
    found.set_page_load_timeout(120)
    yield found
    found.quit()


def wait(browser, script, seconds=60):
    """What the script returns, as soon as that is something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = browser.execute_script(f"return {script}")
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{script} stayed {found!r}: {browser.get_log('browser')}")


def visit(browser, server, runs=1, clear=True):
    """Come in as a person does, and wait until so many runs are listed. Whatever an earlier page said is forgotten."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(f"http://127.0.0.1:{server.port}/?token={TOKEN}")
    wait(browser, "document.getElementById('status').textContent.startsWith('live')")
    wait(browser, f"document.querySelectorAll('#runs tbody tr').length >= {runs}")
    if clear:
        click(browser, "#select-none")
        wait(browser, "!document.querySelector('#hint').hidden")


def rows(browser):
    return browser.execute_script(
        "return [...document.querySelectorAll('#runs tbody tr .title')].map(e => e.title.split('\\n')[1])"
    )


def click(browser, selector):
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def type_in(browser, selector, text):
    browser.execute_script(
        "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
        "e.dispatchEvent(new Event('input')); e.dispatchEvent(new Event('change'))",
        selector,
        text,
    )


def inked(browser, chart):
    """How many pixels of a chart are drawn in the colour of its first series."""
    return browser.execute_script(
        """const c = document.querySelector(arguments[0] + ' .fc-canvas');
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let n = 0;
        for (let i = 0; i < d.length; i += 4) if (d[i] < 40 && d[i + 1] > 90 && d[i + 1] < 140 && d[i + 2] > 150) n++;
        return n""",
        chart,
    )


def quiet(browser):
    """Nothing in the console: no error, and nothing that the policy had to stop."""
    said = [line["message"] for line in browser.get_log("browser")]
    assert [line for line in said if "willReadFrequently" not in line] == []  # that one is about `inked` above


def test_curves_grow_while_a_run_goes_on(browser, tmp_path):
    journal = begin(tmp_path / "going", rounds=40)
    for index in range(4):
        one_round(journal, index)
    write(tmp_path / "done", rounds=6, selector="uniform")
    with Served(tmp_path) as server:
        visit(browser, server, runs=2)
        assert browser.current_url == f"http://127.0.0.1:{server.port}/"
        assert rows(browser) == ["going", "done"]
        click(browser, "#runs tbody tr input")
        wait(browser, "document.querySelector('#compared tbody td.number')?.textContent === '4'")
        before = inked(browser, "#by-round")
        assert before > 50
        assert inked(browser, "#by-time") > 50
        for index in range(4, 12):
            one_round(journal, index, accuracy=0.5 if index % 2 else 0.1)
        wait(browser, "document.querySelector('#runs tbody tr .c-done').innerText.includes('12 / 40')")
        wait(browser, "document.querySelector('#compared tbody td.number').textContent === '12'")
        assert inked(browser, "#by-round") > 1.5 * before
        label = browser.execute_script("return document.querySelector('#map .fc-over').getAttribute('aria-label')")
        assert "24 cells" in label
        click(browser, "#runs tbody tr:nth-child(2) input")
        wait(browser, "document.querySelectorAll('#compared tbody tr').length === 2")
        type_in(browser, "#target", "0.5")
        wait(browser, "document.querySelector('#compared tbody').innerText.includes('not reached')")
        assert "6" in browser.execute_script("return document.querySelector('#compared tbody tr').innerText")
        shutil.rmtree(tmp_path / "done")
        wait(browser, "document.querySelectorAll('#compared tbody tr').length === 1")
        quiet(browser)
    journal.close()


def test_filters_and_clients(browser, tmp_path):
    for seed in range(3):
        write(tmp_path / f"oort-{seed}", rounds=7, seed=seed)
        write(tmp_path / f"flash-{seed}", rounds=7, seed=seed, selector="flash", world="other")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "journal.db").write_bytes(b"x" * 500)
    with Served(tmp_path) as server:
        visit(browser, server, runs=3)
        assert len(rows(browser)) == 3  # two groups of three seeds, and the broken one
        click(browser, "#by-group")
        wait(browser, "document.querySelectorAll('#runs tbody tr').length === 7")
        type_in(browser, "#by-selector", "flash")
        wait(browser, "document.querySelectorAll('#runs tbody tr').length === 3")
        type_in(browser, "#find", "seed 1")
        wait(browser, "document.querySelectorAll('#runs tbody tr').length === 1")
        assert rows(browser) == ["flash-1"]
        type_in(browser, "#find", "seed 10")
        wait(browser, "document.querySelectorAll('#runs tbody tr').length === 0")
        type_in(browser, "#by-selector", "")
        type_in(browser, "#find", "")
        type_in(browser, "#by-state", "damaged")
        wait(browser, "document.querySelectorAll('#runs tbody tr').length === 1")
        assert "does not check out" in browser.execute_script("return document.querySelector('#runs .note').innerText")
        type_in(browser, "#by-state", "finished")
        type_in(browser, "#by-world", "my-world")
        wait(browser, "document.querySelectorAll('#runs tbody tr').length === 3")
        click(browser, "#select-shown")
        wait(browser, "document.querySelectorAll('#compared tbody tr').length === 3")
        wait(browser, "document.querySelector('#map .fc-over')?.getAttribute('aria-label')?.includes('14 cells')")
        box = browser.find_element("css selector", "#map .fc-over")
        selenium.ActionChains(browser).scroll_to_element(box).move_to_element(box).click().perform()
        wait(browser, "document.getElementById('client-title').textContent === 'Client 3'")
        words = browser.execute_script("return document.getElementById('client').innerText")
        assert "Asked in 2 of 7 rounds: OK 1, FAILED 1." in words
        assert "32 (cohort 27)" in words
        assert "utility" in words
        quiet(browser)


def test_hostile_names_stay_text(browser, tmp_path):
    journal = begin(tmp_path / EVIL.replace("/", ""), selector=EVIL, method=EVIL, world=EVIL, task=EVIL)
    for index in range(4):
        one_round(journal, index, reason=EVIL, part=EVIL, name=EVIL)
    journal.close()
    with Served(tmp_path) as server:
        visit(browser, server)
        click(browser, "#runs tbody tr input")
        wait(browser, "document.querySelectorAll('#compared tbody tr').length === 1")
        wait(browser, "[...document.querySelectorAll('#number option')].length > 2")
        type_in(browser, "#number", EVIL)
        browser.execute_script("document.getElementById('slot').value = 3")
        click(browser, "#ask-client button")
        wait(browser, "document.getElementById('visits').innerText.includes('onerror')")
        assert browser.execute_script("return document.querySelectorAll('img, script:not([src])').length") == 0
        assert browser.execute_script("return window.hit") is None
        quiet(browser)


def test_keyboard_and_phone(browser, tmp_path):
    write(tmp_path / "a-run-with-a-rather-long-name-that-goes-on-and-on", rounds=4)
    with Served(tmp_path) as server:
        size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            visit(browser, server)
            keys = selenium.Keys
            browser.execute_script("document.querySelector('#heads .c-state button').focus()")
            browser.switch_to.active_element.send_keys(keys.ENTER, keys.TAB)
            assert browser.switch_to.active_element.get_attribute("type") == "checkbox"
            browser.switch_to.active_element.send_keys(keys.SPACE)
            wait(browser, "document.querySelectorAll('#compared tbody tr').length === 1")
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide == 390
            quiet(browser)
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


LONG = {
    "selector": "oort(explore=0.8, explore_decay=0.97, explore_min=0.1, penalty=1.5, pacer_step=10, pacer_delta=5.0)",
    "world": "mixed-v1(clients=2000, alpha=0.3, dropout=0.2, latency='lognormal', noise='beta')",
    "task": "cifar-cnn(lr=0.05, epochs=3, batch_size=16, objective='flash-robust(alpha=1.0, beta=8.0)', unused=0.8)",
    "method": "fedprox(mu=0.01)",
}
CUT = """return [...document.querySelectorAll('#runs th, #runs td, #compared td:first-child, #filters > *')]
    .filter(e => e.getClientRects().length && e.scrollWidth > e.clientWidth + 1).map(e => e.className + e.innerText)"""


def test_thirty_runs_with_long_configurations_can_be_read(browser, tmp_path):
    """Nothing is off-screen or runs over its neighbour, seeds are one line with a band, and a first view is there."""
    for seed in range(5):
        for at, selector in enumerate(("uniform", LONG["selector"], "fedacs", "flash", "tifl", "ucb1")):
            write(tmp_path / f"{selector[:40]}-{seed}", rounds=2 + at, **LONG | {"selector": selector, "seed": seed})
    with Served(tmp_path) as server:
        visit(browser, server, runs=6, clear=False)
        wait(browser, "document.querySelectorAll('#compared tbody tr').length === 4")  # before anything is selected
        assert "30 of 30 runs, 20 selected" in browser.execute_script("return document.body.innerText")
        for width in (1400, 700):
            size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            assert browser.execute_script(CUT) == []
            for part in ("accuracy", "clock", "state"):
                box = browser.execute_script(
                    f"return document.querySelector('#runs .c-{part}').getBoundingClientRect()"
                )
                assert box["right"] <= width
                assert box["width"] > 40
            assert "5 seeds: 0-4" in browser.execute_script("return document.querySelector('#runs tbody tr').innerText")
            assert time.strftime("%Y-") in browser.execute_script("return document.querySelector('#runs').innerText")
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        assert "bands the 95 % bootstrap interval" in wait(browser, "document.getElementById('curves-note').innerText")
        assert "seeds)" in browser.execute_script("return document.querySelector('#by-round .fc-legend').innerText")
        click(browser, "#runs .unfold")
        wait(browser, "document.querySelectorAll('#runs tbody tr.child').length === 5")
        for name in ("uniform", "ucb1"):  # the fewest rounds, and then the most
            click(browser, "#heads .c-done button")
            wait(browser, f"document.querySelector('#runs tbody tr .title').innerText === '{name}'")
        quiet(browser)
