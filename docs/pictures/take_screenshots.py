"""Makes the screenshots of docs/reports.md and docs/dashboard.md anew: `python docs/pictures/take_screenshots.py`.

Thirty runs with long configurations are made in a temporary folder (about a minute), and looked at with a headless
Chromium (Debian: apt-get install chromium chromium-driver) through selenium. Console messages are printed: there should
be none.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

from PIL import Image
from selenium import webdriver

from fedcohort.dashboard.board import Board
from fedcohort.dashboard.serve import listen, server
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.store import Store
from fedcohort.report import make_report

HERE = Path(__file__).parent
TOKEN = "a-token-for-screenshots-0123456789"
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"""
SELECTORS = (
    "uniform",
    "oort(explore=0.8, explore_decay=0.97, explore_min=0.1, penalty=1.5, pacer_step=10)",
    "hetero-select",
    "ledger",
)
WORLD, TASK = "mixed-v1(clients=40, alpha=0.3)", "digits-softmax(lr=0.05, epochs=3, batch_size=16)"


def make_runs(folder: Path) -> None:
    """Four selectors and five seeds in one setting, two methods and five seeds in another."""
    store = Store(folder)
    for seed in range(5):
        for selector in SELECTORS:
            store.obtain(RunConfig(selector=selector, world=WORLD, task=TASK, rounds=30, cohort_size=6, seed=seed))
        for method in ("fedavg", "fedprox(mu=0.01)"):
            other = {"world": "dirichlet-0.1-v1", "task": "digits-softmax", "rounds": 20, "cohort_size": 6}
            store.obtain(RunConfig(selector="oort", method=method, seed=seed, **other))
    for run in folder.glob("oort-*/journal.db"):  # the setting with several selectors is the newest
        if '"dirichlet' in (run.parent / "config.toml").read_text():
            os.utime(run, (time.time() - 86_400,) * 2)


def browser(profile: str) -> webdriver.Chrome:
    """Chromium with a new and empty profile."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
    for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def shoot(chrome: webdriver.Chrome, address: str, width: int, height: int, name: str, scheme: str = "light") -> None:
    """One picture in few colours, to keep the file small, as a reader sees it who prefers light or dark."""
    wish = [{"name": "prefers-color-scheme", "value": scheme}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wish})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    chrome.get(address)
    time.sleep(4)
    target = HERE / name
    chrome.save_screenshot(str(target))
    Image.open(target).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(target, optimize=True)
    said = [line["message"] for line in chrome.get_log("browser")]
    print(f"{name}: {target.stat().st_size / 1000:.0f} kB, {said or 'the console is empty'}")


def main() -> None:
    """Everything."""
    place = Path(tempfile.mkdtemp())
    make_runs(place / "runs")
    make_report([place / "runs"], place / "report.html")
    sock = listen("127.0.0.1", 0)
    board = server(Board([place / "runs"]), sock, TOKEN)
    thread = threading.Thread(target=lambda: asyncio.run(board.serve(sockets=[sock])), daemon=True)
    thread.start()
    chrome = browser(str(place / "profile"))
    try:
        address = f"http://127.0.0.1:{sock.getsockname()[1]}/?token={TOKEN}"
        shoot(chrome, address, 1400, 1330, "dashboard.png")
        shoot(chrome, address, 700, 1330, "dashboard-narrow.png")
        shoot(chrome, address, 1400, 1330, "dashboard-dark.png", "dark")
        shoot(chrome, f"file://{place}/report.html#", 1400, 1000, "report.png")
        shoot(chrome, f"file://{place}/report.html#", 1400, 1000, "report-dark.png", "dark")
    finally:
        chrome.quit()
        board.should_exit = True
        thread.join(10)
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
