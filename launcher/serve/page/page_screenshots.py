#!/usr/bin/env python3
"""Takes the pictures of the chat page that docs/images has: page_screenshots.py DIR

Run it in Bazel's folder of outputs (build/bin), where the page is.
"""

import sys
import time

from page_browser import MISSING, Browser, browser_and_server

DEMO = '''Both compute the same sum; they differ in **what they keep in memory**.

| | naive | online |
|---|---|---|
| passes over the row | 3 | 1 |
| extra memory | the row of scores | two numbers |

The online form carries the running maximum `m` and the sum `s`, and rescales when a larger score comes:

```python
for x in scores:
    new = max(m, x)
    s = s * exp(m - new) + exp(x - new)
    m = new
```

1. It never overflows, as every exponent is at most 0.
2. Partial results combine, so blocks of keys can be computed in any order.
'''


def take_screenshots(driver, server, folder):
    page = Browser(driver, server)
    demo = {'content': DEMO, 'reasoning': 'They want the difference.', 'finish': 'stop', 'role': 'assistant',
            'stats': {'tokens': 187, 'rate': 412.6, 'first': 0.04, 'prompt': 38, 'total': 1225, 'thought': 1.4}}
    messages = [{'role': 'user', 'content': 'How does online softmax differ from the usual one?'}, demo]
    titles = ['A trip to Lisbon in spring', 'Regular expressions, explained', 'How does online softmax differ?']
    for name, width, height, scheme in [('chat-page', 1280, 860, 'light'), ('chat-page-phone', 390, 780, 'dark')]:
        page.emulate(width=width, height=height, scheme=scheme)
        page.open()
        page.js('''localStorage.clear(); sessionStorage.setItem('nvllm.open', 'c2');
            arguments[0].forEach((title, i) => localStorage.setItem('nvllm.chat.c' + i, JSON.stringify(
              {id: 'c' + i, title, created: i, updated: i, settings: {}, messages: arguments[1]})));''', titles, messages)
        page.open()
        page.js('document.activeElement.blur(); document.querySelector("#log").scrollTop = 0')
        time.sleep(1)
        driver.save_screenshot(f'{folder}/{name}.png')


if __name__ == '__main__':
    if MISSING:
        sys.exit(MISSING)
    with browser_and_server() as started:
        take_screenshots(*started, sys.argv[1])
