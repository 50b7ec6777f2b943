"""The chat page in headless Chromium, as a person meets it, served by mock_server.py.

    with browser_and_server() as (driver, server):
        page = Browser(driver, server)
        page.open()

Needs Chromium, its driver and Selenium, as tools/setup ci installs them; where they are missing, MISSING
says so. The current folder is Bazel's runfiles, or its folder of outputs (build/bin), where the page is.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    MISSING = None
except ImportError:
    # Debian's packages are for Debian's Python, which need not be the first one in PATH.
    if os.path.realpath(sys.executable) != os.path.realpath('/usr/bin/python3') and os.path.exists('/usr/bin/python3'):
        os.execv('/usr/bin/python3', ['/usr/bin/python3', *sys.argv])
    MISSING = 'needs python3-selenium (tools/setup ci)'
    Keys = None  # which tests import

from mock_server import MockServer  # pylint: disable=wrong-import-position

PAGE = Path('launcher/serve/page')
WAIT_S = 90  # tests may run on two loaded cores
for program, package in [('chromium', 'chromium'), ('chromedriver', 'chromium-driver')]:
    if not MISSING and not shutil.which(program):
        MISSING = f'needs {program} (Debian package {package}; tools/setup ci)'


def start_browser(folder):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which('chromium')
    for argument in ('--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
                     '--disable-background-networking', '--disable-extensions', f'--user-data-dir={folder}/profile',
                     '--window-size=1280,860', '--lang=en'):
        options.add_argument(argument)
    options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
    environment = {**os.environ, 'HOME': folder, 'XDG_CONFIG_HOME': folder, 'XDG_CACHE_HOME': folder}
    driver = webdriver.Chrome(service=Service(shutil.which('chromedriver'), env=environment), options=options)
    driver.set_script_timeout(WAIT_S)
    return driver


@contextlib.contextmanager
def browser_and_server():
    """Chromium's driver, and a server that it can open the page from."""
    with tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'), ignore_cleanup_errors=True) as folder, \
            MockServer((PAGE / 'page.html').read_bytes(), (PAGE / 'page.csp').read_text('utf-8')) as server:
        driver = start_browser(folder)
        try:
            yield driver, server
        finally:
            driver.quit()


class Browser:
    """The page as a person meets it."""

    def __init__(self, driver, server):
        self.driver, self.server = driver, server

    def open(self, path=''):
        self.driver.get(self.server.url + path)
        self.wait(lambda: self.text('#model') != 'Connecting…', 'the page to know the model')

    def wait(self, condition, what):
        end = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f'waited {WAIT_S} s for {what}; the page says: {self.text("main")!r}')
            time.sleep(0.03)

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        found = self.all(selector)
        if len(found) != 1:
            raise AssertionError(f'{len(found)} elements {selector}, not 1')
        return found[0]

    def text(self, selector):
        """What is seen of an element; hidden parts are left out."""
        return self.js('''const e = document.querySelector(arguments[0]);
            return e?.getClientRects().length ? e.innerText : ""''', selector)

    def texts(self, selector):
        return self.js('return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)', selector)

    def press(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)

    def click(self, selector):
        self.js('arguments[0].click()', self.one(selector))

    def click_label(self, label, last=True):
        buttons = self.all(f'button[aria-label="{label}"]')
        self.js('arguments[0].click()', buttons[-1 if last else 0])

    def busy(self):
        return self.one('#go').get_attribute('aria-label') == 'Stop the answer'

    def send(self, text, finish=True):
        self.one('#input').send_keys(text + Keys.ENTER)
        self.wait(lambda: text in '\n'.join(self.texts('.bubble')), f'the message {text!r} to show')
        if finish:
            self.finish()

    def finish(self):
        self.wait(lambda: not self.busy(), 'the answer to end')

    def answers(self):
        return self.texts('.assistant > .md')

    def choose(self, label):
        """Presses a button of the open question."""
        for button in self.all('#ask-buttons button'):
            if button.text == label:
                button.click()
                return
        raise AssertionError(f'no button {label!r} in the dialog')

    def chats(self):
        return self.texts('#chats .open')

    def emulate(self, width=None, height=800, scheme=None):
        if width:
            self.driver.execute_cdp_cmd('Emulation.setDeviceMetricsOverride', {
                'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': width < 600})
        else:
            self.driver.execute_cdp_cmd('Emulation.clearDeviceMetricsOverride', {})
        features = [{'name': 'prefers-color-scheme', 'value': scheme}] if scheme else []
        self.driver.execute_cdp_cmd('Emulation.setEmulatedMedia', {'features': features})

    def complaints(self):
        """What the browser reports of the policy and of scripts that failed."""
        return [entry['message'] for entry in self.driver.get_log('browser')
                if 'Content Security Policy' in entry['message'] or 'Uncaught' in entry['message']]
