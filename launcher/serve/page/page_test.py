#!/usr/bin/env python3
"""The chat page in headless Chromium, against mock_server.py: page_test.py [WORD...]

Words choose the cases that have one of them in their names. By hand, run it in Bazel's folder of outputs
(build/bin), where the page is. Without Chromium every case is skipped.
"""

import contextlib
import json
import os
import sys
import unittest
from pathlib import Path

HERE = Path(os.path.abspath(__file__)).parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]
# pylint: disable=wrong-import-position
from mock_server import MARKDOWN, MODEL, MockServer
from page_browser import MISSING, Browser, Keys, browser_and_server
from testing import unittest_report


class PageTest(unittest.TestCase):
    def setUp(self):
        if MISSING:
            self.skipTest(MISSING)
        self.server.api_key, self.server.delay_s = None, 0.01
        self.server.requests.clear()
        self.server.gone.clear()
        self.server.go_on.set()
        self.page = Browser(self.driver, self.server)
        self.page.emulate(scheme='light')
        self.page.open()

    def tearDown(self):
        self.page.js('localStorage.clear(); sessionStorage.clear()')
        self.assertEqual(self.page.complaints(), [])

    def test_streams_an_answer(self):
        self.server.go_on.clear()
        self.page.send('pause', finish=False)
        self.page.wait(lambda: self.page.answers() == ['The first half,'], 'the first half of the answer')
        self.assertTrue(self.page.busy())
        self.server.go_on.set()
        self.page.finish()
        self.assertEqual(self.page.answers(), ['The first half, and the second.'])
        body = self.server.requests[0]
        self.assertEqual(body['model'], MODEL)
        self.assertIs(body['stream'], True)
        self.assertEqual(body['stream_options'], {'include_usage': True})
        self.assertEqual([m['role'] for m in body['messages']], ['user'])
        self.assertNotIn('temperature', body)

    def test_shows_rate_and_context(self):
        self.page.send('hello')
        self.assertRegex(self.page.text('.stats'), r'^24 tokens · [\d.,]+ tokens/s · first after \d+\.\d\d s$')
        self.assertEqual(self.page.text('#used'), '1,024 of 8,192 tokens')

    def test_stops_an_answer(self):
        self.page.send('endless', finish=False)
        self.page.wait(lambda: 'more more' in ''.join(self.page.answers()), 'the answer to begin')
        self.page.click('#go')
        self.page.finish()
        self.page.wait(self.server.gone.is_set, 'the server to see that the client left')
        self.assertEqual(self.page.text('.note'), 'Stopped.')
        self.page.send('and on')
        self.assertEqual([m['role'] for m in self.server.requests[1]['messages']], ['user', 'assistant', 'user'])

    def test_generates_again_and_keeps_both(self):
        self.page.send('hello')
        self.page.click_label('Generate again')
        self.page.finish()
        self.assertEqual(self.page.answers(), ['Answer 2 to: hello'])
        self.assertEqual([m['role'] for m in self.server.requests[1]['messages']], ['user'])
        self.page.click_label('Previous version')
        self.assertEqual(self.page.answers(), ['Answer 1 to: hello'])
        self.page.click_label('Next version')
        self.assertEqual(self.page.answers(), ['Answer 2 to: hello'])

    def test_edits_a_message_and_goes_on_from_there(self):
        self.page.send('first')
        self.page.send('second')
        self.page.click_label('Edit the message', last=False)
        self.page.press(' changed', Keys.ENTER)
        self.page.wait(lambda: self.page.answers() == ['Answer 3 to: first changed'], 'the new answer')
        self.page.finish()
        self.assertEqual(self.page.texts('.bubble'), ['first changed'])
        self.page.click_label('Previous version', last=False)
        self.assertEqual(self.page.texts('.bubble'), ['first', 'second'])

    def test_keeps_conversations_over_a_reload(self):
        self.page.send('apples')
        self.page.click('#new')
        self.page.send('pears')
        self.page.open()
        self.assertEqual(self.page.chats(), ['pears', 'apples'])
        self.assertEqual(self.page.answers(), ['Answer 2 to: pears'])
        self.page.click('#chats li:nth-child(2) .open')
        self.assertEqual(self.page.answers(), ['Answer 1 to: apples'])
        self.page.send('more')
        self.assertEqual([m['content'] for m in self.server.requests[2]['messages']],
                         ['apples', 'Answer 1 to: apples', 'more'])

    def test_renames_and_deletes_conversations(self):
        self.page.send('apples')
        self.page.click_label('Rename apples')
        self.page.press('fruit', Keys.ENTER)
        self.page.wait(lambda: self.page.chats() == ['fruit'], 'the new name')
        self.page.click_label('Delete fruit')
        self.page.choose('Cancel')
        self.assertEqual(self.page.chats(), ['fruit'])
        self.page.click_label('Delete fruit')
        self.page.choose('Delete')
        self.page.wait(lambda: self.page.chats() == [], 'the conversation to go')
        self.page.open()
        self.assertEqual((self.page.chats(), self.page.answers()), ([], []))

    def test_tabs_do_not_destroy_each_others_conversations(self):
        self.page.send('apples')
        first = self.driver.current_window_handle
        self.driver.switch_to.new_window('tab')
        try:
            self.page.open()
            self.page.send('pears')
            self.page.click('#chats li:nth-child(2) .open')
            self.page.send('from the second tab')
            self.driver.switch_to.window(first)
            self.page.wait(lambda: len(self.page.answers()) == 2, 'the first tab to show what the second did')
            self.page.send('from the first tab')
            self.page.open()
            self.assertEqual(sorted(self.page.chats()), ['apples', 'pears'])
            self.assertEqual(len(self.page.answers()), 3)
        finally:
            for handle in self.driver.window_handles:
                if handle != first:
                    self.driver.switch_to.window(handle)
                    self.driver.close()
            self.driver.switch_to.window(first)

    def test_a_conversation_changed_elsewhere_meanwhile_becomes_a_copy(self):
        self.page.send('apples')
        self.page.send('endless', finish=False)
        # Another tab's save: no event comes to the tab that writes.
        self.page.js('''const key = Object.keys(localStorage).find(k => k.startsWith('nvllm.chat.'));
            const chat = JSON.parse(localStorage[key]); chat.title = 'theirs'; localStorage[key] = JSON.stringify(chat);''')
        self.page.click('#go')
        self.page.finish()
        self.page.open()
        self.assertEqual(sorted(self.page.chats()), ['apples (copy)', 'theirs'])

    def test_generates_on_while_another_conversation_is_shown(self):
        self.server.go_on.clear()
        self.page.send('pause', finish=False)
        self.page.click('#new')
        self.page.send('pears')
        self.page.click('#chats li:nth-child(2) .open')
        self.page.wait(lambda: self.page.answers() == ['The first half,'], 'the first half of the answer')
        self.server.go_on.set()
        self.page.finish()
        self.assertEqual(self.page.answers(), ['The first half, and the second.'])

    def test_shows_a_refusal(self):
        self.page.send('refuse')
        self.assertEqual(self.page.text('.error > div'),
                         '400 BadRequestError\ntop_p 2.0 is not in (0, 1]; pass a smaller one')
        self.assertEqual(self.page.one('.error').get_attribute('role'), 'alert')
        self.page.send('overload')
        self.assertIn('the queue is full. Try again in 7 s.', self.page.texts('.error')[1])

    def test_shows_an_error_within_the_stream_and_what_came_before(self):
        self.page.send('fail')
        self.assertEqual(self.page.answers(), ['Half of it'])
        self.assertEqual(self.page.text('.error > div'), 'InternalServerError\nworker 1 died: signal 9')
        self.page.send('break')
        self.assertIn('before it was complete', self.page.texts('.error')[1])

    def test_shows_that_the_server_is_gone(self):
        html, policy = self.server.html, self.server.policy
        with MockServer(html, policy) as other:
            page = Browser(self.driver, other)
            page.open()
        page.send('hello')
        self.assertIn('The server cannot be reached', page.text('.error'))
        self.assertIn(other.url, page.text('.error'))
        with MockServer(html, policy, other.server_port):
            page.click('.error button')
            page.wait(lambda: page.answers() == ['Answer 1 to: hello'], 'the answer after a second try')

    def test_asks_for_an_api_key_and_keeps_it_in_this_tab(self):
        self.server.api_key = 'secret'
        self.page.send('hello', finish=False)
        self.page.wait(lambda: self.page.text('#ask-title') == 'API key', 'the question')
        self.page.press('wrong', Keys.ENTER)
        self.page.wait(lambda: 'refused' in self.page.text('#ask-text'), 'the second question')
        self.page.press('secret', Keys.ENTER)
        self.page.finish()
        self.assertEqual(self.page.answers(), ['Answer 1 to: hello'])
        self.assertNotIn('secret', self.page.js('return JSON.stringify(localStorage)'))
        self.page.open()
        self.page.send('again')
        self.assertEqual(len(self.server.requests), 2)

    def test_a_models_script_is_text(self):
        self.page.send('hostile')
        self.assertIsNone(self.page.js('return window.hacked ?? null'))
        text = self.page.answers()[0]
        for part in ('<script>window.hacked = 1</script>', '<img src=x onerror=', '<svg onload=alert(1)>',
                     '[a](javascript:window.hacked=3)', '<script>window.hacked = 4</script>'):
            self.assertIn(part, text)
        self.assertEqual(self.page.all('.md script, .md img, .md a'), [])
        self.page.open()
        self.assertIsNone(self.page.js('return window.hacked ?? null'))

    def test_renders_markdown(self):
        self.page.send('markdown')
        count = lambda selector: len(self.page.all('.md ' + selector))  # noqa: E731
        self.assertEqual(self.page.texts('.md h3'), ['A heading'])
        self.assertEqual(self.page.texts('.md strong'), ['strong words', 'both', '2'])
        self.assertEqual(self.page.texts('.md em'), ['emphasis', 'both'])
        self.assertEqual(self.page.texts('.md del'), ['gone'])
        self.assertEqual(self.page.texts('.md :not(pre) > code'), ['a*b*c', 'c'])
        self.assertIn('2 * 3 * 4, snake_case_name and *stars*.', self.page.text('.md p'))
        links = self.page.js('return [...document.querySelectorAll(".md a")].map(a => [a.href, a.rel])')
        self.assertEqual(links, [[url, 'noopener noreferrer'] for url in (
            'https://example.com/a_(b)', 'https://example.com/bare', 'https://example.com/angle')])
        self.assertEqual((count('> ol > li'), count('> ol > li > ul > li'), count('> ol > li > ol > li')), (3, 1, 1))
        self.assertEqual(self.page.texts('.md pre'), ['def f(x):\n    return "<b>" + x',
                                                      'no language\n\n  keeps its indentation'])
        self.assertEqual(self.page.texts('.md td'), ['a|b', '1', 'c', '2'])
        self.assertEqual((count('blockquote li'), count('hr'), count('table')), (1, 1, 1))
        self.assertEqual(self.page.texts('.md > p')[-1], 'The end.')

    def test_a_stream_renders_as_the_whole_text_does(self):
        self.page.send('markdown')
        streamed = self.page.js('return document.querySelector(".md").outerHTML')
        self.page.open()
        self.assertEqual(self.page.js('return document.querySelector(".md").outerHTML'), streamed)

    def test_any_prefix_of_markdown_then_the_rest_renders_alike(self):
        different = self.page.js('''
            const text = arguments[0], wrong = [];
            const whole = h('div'); new MarkdownView(whole).update(text);
            for (let cut = 0; cut < text.length; cut += 2) {
              const parts = h('div'), view = new MarkdownView(parts);
              view.update(text.slice(0, cut)); view.update(text.slice(0, cut + 3)); view.update(text);
              if (parts.outerHTML !== whole.outerHTML) wrong.push(cut);
            }
            return wrong;''', MARKDOWN)
        self.assertEqual(different, [])

    def test_long_and_hostile_markdown_is_cheap(self):
        slow = self.page.js('''
            const texts = {stars: '*a '.repeat(30000), opens: '['.repeat(20000), ticks: '`a``b'.repeat(10000),
              quotes: '> '.repeat(5000), lists: Array.from({length: 2000}, (_, i) => ' '.repeat(i % 50) + '- x').join('\\n'),
              strong: '**a'.repeat(20000), blanks: '- a\\n' + '\\n'.repeat(20000), hashes: '#'.repeat(50000),
              links: '[a]('.repeat(10000), table: '|a'.repeat(5000) + '\\n' + '|-'.repeat(5000)};
            const slow = [];
            for (const [name, text] of Object.entries(texts)) {
              const start = performance.now();
              new MarkdownView(h('div')).update(text);
              if (performance.now() - start > 9000) slow.push([name, performance.now() - start]);
            }
            return slow;''')
        self.assertEqual(slow, [])

    def test_tokens_of_a_long_answer_stay_cheap(self):
        times = self.page.js('''
            const view = new MarkdownView(h('div')), times = [];
            let text = '';
            for (let i = 0; i < 400; i++) {
              const start = performance.now();
              for (let j = 0; j < 10; j++) view.update(text += 'some **words** and `code` ');
              view.update(text += '\\n\\n');
              times.push(performance.now() - start);
            }
            const median = list => list.sort((a, b) => a - b)[list.length / 2];
            return [median(times.slice(0, 100)), median(times.slice(-100))];''')
        self.assertLess(times[1], 5 * times[0] + 2, 'milliseconds of ten updates')

    def test_folds_reasoning(self):
        self.server.go_on.clear()
        self.page.send('think', finish=False)
        self.page.wait(lambda: 'for a while.' in self.page.text('details .md'), 'the reasoning to show while it comes')
        self.assertEqual(self.page.text('summary'), 'Thinking…')
        self.server.go_on.set()
        self.page.finish()
        self.assertRegex(self.page.text('summary'), r'^Thought for \d+\.\d s$')
        self.assertFalse(self.page.js('return document.querySelector("details").open'))
        self.assertEqual(self.page.answers(), ['It is 42.'])
        self.page.send('tags')
        self.assertEqual(self.page.answers()[1], 'The rest.')
        self.assertIn('in the content', self.page.js('return document.querySelectorAll("details")[1].textContent'))

    def test_shows_tool_calls_and_sends_their_results(self):
        self.page.send('tool')
        self.assertEqual(self.page.text('summary'), 'Tool call get_weather')
        self.assertEqual(json.loads(self.page.text('details pre')), {'city': 'Paris', 'days': 2})
        self.page.one('.results textarea').send_keys('sunny')
        self.page.click('.results button')
        self.page.wait(lambda: self.page.answers()[-1] == 'Answer 2 to: sunny', 'the answer to the result')
        messages = self.server.requests[1]['messages']
        self.assertEqual([m['role'] for m in messages], ['user', 'assistant', 'tool'])
        self.assertEqual(messages[1]['tool_calls'][0]['function'],
                         {'name': 'get_weather', 'arguments': '{"city": "Paris", "days": 2}'})
        self.assertEqual(messages[2]['tool_call_id'], 'call_1')

    def test_a_tool_call_without_a_result_is_left_out(self):
        self.page.send('tool')
        self.page.send('never mind')
        self.assertEqual(self.page.all('.results'), [])
        self.assertEqual([m['role'] for m in self.server.requests[1]['messages']], ['user'])

    def test_settings_go_into_the_request(self):
        self.page.click('#settings')
        for name, value in [('system', 'Be brief.'), ('temperature', '0.5'), ('top_k', '20'), ('min_p', '0'), ('seed', '7')]:
            self.page.one('#' + name).send_keys(value)
        self.page.one('#seed').send_keys(Keys.ENTER)
        self.page.wait(lambda: not self.page.all('dialog[open]'), 'the settings to close')
        self.page.send('hello')
        body = self.server.requests[0]
        self.assertEqual(body['messages'][0], {'role': 'system', 'content': 'Be brief.'})
        given = {name: body[name] for name in ('temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed') if name in body}
        self.assertEqual(given, {'temperature': 0.5, 'top_k': 20, 'min_p': 0, 'seed': 7})

    def test_exports(self):
        self.page.js('''window.exported = [];
            URL.createObjectURL = blob => { blob.text().then(t => window.exported.push(t)); return 'blob:x'; };
            HTMLAnchorElement.prototype.click = () => {};''')
        self.page.send('think')
        for count, kind in enumerate(('JSON', 'Markdown'), 1):
            self.page.click('#export')
            self.page.choose(kind)
            self.page.wait(lambda: self.page.js('return exported.length') == count, 'the file')  # noqa: B023
        as_json, as_markdown = self.page.js('return exported')
        self.assertEqual(json.loads(as_json)['messages'][1]['content'], 'It is **42**.')
        self.assertEqual(as_markdown, '# think\n\n## You\n\nthink\n\n## Assistant\n\n'
                                      '> I should think about this for a while.\n\nIt is **42**.\n')

    def test_dark_mode(self):
        background = lambda: self.page.js('return getComputedStyle(document.body).backgroundColor')  # noqa: E731
        light = background()
        self.page.emulate(scheme='dark')
        self.page.wait(lambda: background() != light, 'the page to follow the system')
        dark = background()
        self.page.click('#theme')  # system -> light
        self.assertEqual((self.page.text('#theme'), background()), ('Theme: light', light))
        self.page.emulate(scheme='light')
        self.page.click('#theme')
        self.page.open()
        self.assertEqual((self.page.text('#theme'), background()), ('Theme: dark', dark))

    def test_works_by_keyboard(self):
        self.page.js('document.activeElement.blur(); document.querySelector("#skip").focus()')
        self.page.press(Keys.ENTER)
        self.assertEqual(self.driver.switch_to.active_element.get_attribute('id'), 'input')
        self.page.press('one', Keys.SHIFT, Keys.ENTER, Keys.NULL, 'two')
        self.assertEqual(self.server.requests, [])
        self.page.press(Keys.ENTER)
        self.page.finish()
        self.assertEqual(self.server.requests[0]['messages'][0]['content'], 'one\ntwo')
        self.page.press('endless', Keys.ENTER)
        self.page.wait(self.page.busy, 'the answer to begin')
        self.page.press(Keys.ESCAPE)
        self.page.finish()
        self.page.wait(self.server.gone.is_set, 'the server to see that the client left')
        self.assertEqual(self.driver.switch_to.active_element.get_attribute('id'), 'input')

    def test_focus_is_seen(self):
        # The ring shows for the keyboard, not for a click.
        self.page.one('#input').send_keys(Keys.SHIFT, Keys.TAB)
        outline = 'const s = getComputedStyle(document.activeElement); return s.outlineStyle + " " + s.outlineWidth'
        self.assertEqual(self.page.js(outline), 'solid 2px')

    def test_says_to_screen_readers_that_an_answer_ended(self):
        self.page.send('hello')
        self.page.wait(lambda: self.page.js('return document.querySelector("#live").textContent') == 'Answer: Answer 1 to: hello',
                       'the announcement')
        self.assertEqual(self.page.one('#live').get_attribute('aria-live'), 'polite')
        self.assertEqual(self.page.js('return [...document.querySelectorAll("nav, main, header, h1")].length'), 4)

    def test_every_button_and_field_has_a_name(self):
        self.page.send('tool')
        self.page.send('hello')
        nameless = self.page.js('''return [...document.querySelectorAll('button, input, textarea, select')].filter(e =>
            !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.labels?.length || e.textContent.trim()))
            .map(e => e.outerHTML)''')
        self.assertEqual(nameless, [])

    def test_a_phone_has_no_horizontal_scroll(self):
        self.page.emulate(width=360, height=640, scheme='light')
        self.page.open()
        self.page.send('markdown ' + 'averyveryverylongword' * 8)
        wide = '''return [document.documentElement.scrollWidth, document.querySelector('#log').scrollWidth -
            document.querySelector('#log').clientWidth]'''
        self.assertEqual(self.page.js(wide), [360, 0])
        self.assertEqual(self.page.text('#side'), '')
        self.page.click('#open-side')
        self.assertEqual(len(self.page.chats()), 1)
        self.page.press(Keys.ESCAPE)
        self.page.wait(lambda: self.page.text('#side') == '', 'the drawer to close')

    def test_follows_the_answer_only_while_its_end_is_in_view(self):
        self.page.emulate(width=360, height=640, scheme='light')
        self.page.send('lines')
        gap = 'const l = document.querySelector("#log"); return l.scrollHeight - l.scrollTop - l.clientHeight'
        self.assertLess(self.page.js(gap), 5)
        self.server.delay_s = 0.05
        self.page.send('lines again', finish=False)
        self.page.wait(lambda: 'Line 3.' in self.page.answers()[-1], 'some lines')
        self.page.js('document.querySelector("#log").scrollTop = 0')
        self.page.finish()
        self.assertEqual(self.page.js('return document.querySelector("#log").scrollTop'), 0)
        self.page.click('#latest')
        self.page.wait(lambda: self.page.js(gap) < 5, 'the end')

    def test_works_below_a_path(self):
        self.page.open('some/prefix')
        self.page.send('hello')
        self.assertEqual(self.page.answers(), ['Answer 1 to: hello'])
        self.assertEqual(self.page.js('return BASE'), '/some/prefix/')

    def test_shows_an_answer_that_was_cut_off_by_a_reload(self):
        self.page.send('endless', finish=False)
        self.page.wait(lambda: 'more' in ''.join(self.page.answers()), 'the answer to begin')
        self.page.open()
        self.assertIn('more', self.page.answers()[0])
        self.assertEqual(self.page.text('.note'), 'The answer was cut off.')


def main():
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(PageTest)
    words = sys.argv[1:]
    if words:
        suite = unittest.TestSuite(test for test in suite if any(word in test.id() for word in words))
    started = contextlib.nullcontext((None, None)) if MISSING else browser_and_server()
    with started as (PageTest.driver, PageTest.server):
        return unittest_report.run(suite)


if __name__ == '__main__':
    sys.exit(main())
