"""A real browser for tests: headless Chromium and its driver, from the system's packages."""

import shutil
import tempfile

import pytest

HOW = (
    "needs Chromium and its driver: apt-get install chromium chromium-driver (Debian, Ubuntu), "
    "dnf install chromium chromedriver (Fedora), brew install chromium chromedriver (macOS)"
)
HOW_SELENIUM = "needs selenium: pip install selenium, or make test"
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)


def find(*names):
    return next((path for name in names if (path := shutil.which(name))), None)


def keys():
    """Names of keys; without selenium the whole module that asks for them is skipped."""
    return pytest.importorskip("selenium.webdriver.common.keys", reason=HOW_SELENIUM).Keys


def start():
    """Start the browser, or skip and say how to get it."""
    browser = find("chromium", "chromium-browser", "google-chrome")
    driver = find("chromedriver")
    if browser is None or driver is None:
        pytest.skip(HOW)
    webdriver = pytest.importorskip("selenium.webdriver", reason=HOW_SELENIUM)
    options = webdriver.ChromeOptions()
    profile = tempfile.mkdtemp(prefix="pickmix-browser-")
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    return webdriver.Chrome(options=options, service=service), profile


def stop(started):
    driver, profile = started
    driver.quit()
    shutil.rmtree(profile, ignore_errors=True)


class Page:
    """A report in the browser, as tests ask about it."""

    def __init__(self, driver, path):
        self.driver = driver
        self.path = path

    def open(self, **media):
        """Load the page anew, with wishes such as prefers_color_scheme="dark"."""
        # A page that still scrolls smoothly moves away under a click.
        media = {"prefers_reduced_motion": "reduce"} | media
        features = [
            {"name": name.replace("_", "-"), "value": value} for name, value in media.items()
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        # What the page before has logged is none of this one's.
        self.driver.get_log("browser")
        self.driver.get(self.path.as_uri())
        assert self.run("return document.documentElement.dataset.ready") == "true"
        return self

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def state(self, name):
        return self.run("return window.pickmixReport.state[arguments[0]]", name)

    def one(self, selector):
        return self.driver.find_element("css selector", selector)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector):
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return self.run(script, selector)

    def press(self, selector, *keys):
        """Focus an element and press keys there."""
        self.run("document.querySelector(arguments[0]).focus()", selector)
        from selenium.webdriver.common.action_chains import ActionChains

        chain = ActionChains(self.driver)
        for key in keys:
            chain.send_keys(key)
        chain.perform()
        self.frame()

    def click(self, selector):
        element = self.one(selector)
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()
        self.frame()

    def click_at(self, selector, x, y):
        """Click at a place of an element, counted from its upper left corner."""
        from selenium.webdriver.common.action_chains import ActionChains

        element = self.one(selector)
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        size = element.size
        offset = round(x - size["width"] / 2), round(y - size["height"] / 2)
        ActionChains(self.driver).move_to_element_with_offset(element, *offset).click().perform()
        self.frame()

    def frame(self):
        """Wait until what was asked for is drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
        )

    def errors(self):
        """What the browser's console holds."""
        return self.driver.get_log("browser")
