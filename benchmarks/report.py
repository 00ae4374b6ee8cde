"""Size of reports, seconds to write them, and how long a browser takes to load them.

Mixtures of K full Gaussians in 8 columns (see `pickmix.data.rotated`), fitted by a few passes to
ten rows for each component, at least 20,000. Load times are the browser's own: from the start of
the navigation until the page is ready, its script included, and until the first picture of it;
medians of several loads. Needs Chromium and its driver (apt-get install chromium
chromium-driver). Also takes the screenshots of the documentation, of the example of `pickmix fit`.

    python benchmarks/report.py [--sizes 100 1000 10000] [--no-screenshots]
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from PIL import Image
from reporting import (
    Line,
    begin,
    parser_for,
    print_table,
    timed,
    write_lines,
)

import pickmix
from pickmix import GaussianMixture
from pickmix.cli.fit import example
from pickmix.data import rotated

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "inspection"))
import browser  # noqa: E402

IMAGES = ROOT / "docs" / "images"
LOADS = 7
_READY = """
const [entry] = performance.getEntriesByType('navigation');
const paint = performance.getEntriesByName('first-contentful-paint')[0];
return [entry.domComplete, paint ? paint.startTime : NaN];
"""
# From a click on a heading of the table to the sorted page of it.
_SORT = """
const start = performance.now();
document.querySelector('th[data-key=rows] button').click();
return performance.now() - start;
"""


def measure(n_components: int, folder: Path) -> tuple[Line, Path]:
    """A fit, its report, and how long that took."""
    truth = rotated.generate(n_components, 8, 0.2, random_state=0)
    rows, _ = truth.sample(max(20_000, 10 * n_components), random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mixture = GaussianMixture(n_components, max_iter=5, random_state=0).fit(rows)
    mixture.score_samples(rows[:100])
    path = folder / f"report-{n_components}.html"
    # Imports and kernels are loaded beside the clock.
    pickmix.report(mixture, rows[:500])
    _, seconds = timed(lambda: pickmix.report(mixture, rows, path))
    line: Line = {
        "components": n_components,
        "rows": rows.shape[0],
        "MB": path.stat().st_size / 1e6,
        "seconds": seconds,
    }
    return line, path


def load(driver: object, path: Path) -> Line:
    """Load times in milliseconds, medians."""
    page = browser.Page(driver, path)
    ready, painted, sort = [], [], []
    for _ in range(LOADS):
        page.open()
        page.frame()
        found = page.run(_READY)
        ready.append(found[0])
        painted.append(found[1])
        sort.append(page.run(_SORT))
    assert page.errors() == []
    return {
        "ready ms": statistics.median(ready),
        "picture ms": statistics.median(painted),
        "sort ms": statistics.median(sort),
    }


def take_screenshots(driver: object, folder: Path) -> None:
    """The example of `pickmix fit`, light and dark."""
    rows = example(100_000, 500, False).content
    assert isinstance(rows, np.ndarray)
    mixture = GaussianMixture(500, random_state=0).fit(rows)
    path = pickmix.report(mixture, rows, folder / "report.html", title="The embedded example")
    metrics = {"width": 1280, "height": 1480, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    for theme in ("light", "dark"):
        page = browser.Page(driver, path).open(prefers_color_scheme=theme)
        page.frame()
        shot = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
        # A palette makes a third of the size, and nobody sees it.
        shot.quantize(256, kmeans=4, dither=Image.Dither.NONE).save(
            IMAGES / f"report-{theme}.png", optimize=True
        )
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=1)
    parser.add_argument("--sizes", nargs="*", type=int, default=[100, 1000, 10_000])
    parser.add_argument("--no-screenshots", action="store_true")
    arguments = begin(parser)
    started = browser.start()
    try:
        with tempfile.TemporaryDirectory() as name:
            lines = []
            for size in arguments.sizes:
                line, path = measure(size, Path(name))
                lines.append(line | load(started[0], path))
            print_table("Reports, D = 8", lines)
            write_lines(arguments.out, "report.csv", lines)
            if not arguments.no_screenshots:
                take_screenshots(started[0], Path(name))
    finally:
        browser.stop(started)


if __name__ == "__main__":
    main()
