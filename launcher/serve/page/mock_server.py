"""A stand-in for the server of the chat page: it serves the page with its policy, and answers by the
last message's first word. MockServer(html, policy) is a context manager; .url, .requests, .api_key.

Run by hand: mock_server.py PAGE_HTML PAGE_CSP [PORT]
"""

import http.server
import json
import sys
import threading
import time
from pathlib import Path

MODEL = 'mock/small-model'

MARKDOWN = '''# A heading

Some *emphasis*, **strong words**, ***both***, ~~gone~~, `a*b*c`, 2 * 3 * 4, snake_case_name and \\*stars\\*.
A [link](https://example.com/a_(b) "title"), https://example.com/bare. <https://example.com/angle>

1. first
   - nested
     with more

   ```python
   def f(x):
       return "<b>" + x
   ```
2. second
   1. deeper
3. [x] third

> quoted
> - with a list

| name | value |
|:-----|------:|
| a\\|b | 1 |
| `c`  | **2** |

---
```
no language

  keeps its indentation
```
The end.
'''

HOSTILE = '''<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">

[a](javascript:window.hacked=3) [b](data:text/html,x) ![c](javascript:x) <svg onload=alert(1)>

```html
<script>window.hacked = 4</script>
```
'''


def words(text, size=7):
    return [text[i:i + size] for i in range(0, len(text), size)]


class MockServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, html, policy, port=0):
        super().__init__(('127.0.0.1', port), Handler)
        self.html, self.policy = html, policy
        self.stopped = False
        self.api_key = None
        self.delay_s = 0.01
        self.requests = []     # bodies of chat completions
        self.gone = threading.Event()  # a client left during "endless"
        self.go_on = threading.Event()  # what "pause" and "think" wait for in the middle
        self.url = f'http://127.0.0.1:{self.server_port}/'

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.go_on.set()
        self.stopped = True  # open connections get no more answers
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # a browser may close its connections
            super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_):
        pass

    def respond(self, status, body, content_type='application/json', **headers):
        self.send_response(status)
        self.send_header('Content-Type', content_type)
        self.send_header('Content-Length', str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace('_', '-'), value)
        self.end_headers()
        self.wfile.write(body)

    def error(self, status, kind, message, **headers):
        error = {'message': message, 'type': kind, 'param': None, 'code': status}
        self.respond(status, json.dumps({'error': error}).encode(), **headers)

    def allowed(self):
        key = self.server.api_key
        if key is None or self.headers.get('Authorization') == f'Bearer {key}':
            return True
        self.error(401, 'AuthenticationError', 'this server needs an API key')
        return False

    def do_GET(self):
        if self.path.endswith('/v1/models'):
            if self.allowed():
                models = [{'id': MODEL, 'object': 'model', 'max_model_len': 8192}]
                self.respond(200, json.dumps({'object': 'list', 'data': models}).encode())
        else:
            self.respond(200, self.server.html, 'text/html; charset=utf-8',
                         Content_Security_Policy=self.server.policy)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        if self.server.stopped:
            self.close_connection = True
            return
        if not self.allowed():
            return
        self.server.requests.append(body)
        last = body['messages'][-1]['content'].split('\n\n')[-1]
        first_word = (last.split() or [''])[0].rstrip(':')
        if first_word == 'refuse':
            self.error(400, 'BadRequestError', 'top_p 2.0 is not in (0, 1]; pass a smaller one')
        elif first_word == 'overload':
            self.error(503, 'ServiceUnavailableError', 'the queue is full.', Retry_After='7')
        else:
            self.stream(first_word, last, body)

    # --- streams ---

    def stream(self, first_word, last, body):
        self.close_connection = True
        self.send_response(200)
        self.send_header('Content-Type', 'text/event-stream')
        self.send_header('Connection', 'close')
        self.end_headers()
        self.delta({'role': 'assistant', 'content': ''})
        self.send(': keep-alive\n\n')
        scenario = getattr(self, 'say_' + first_word, None)
        if scenario is None:
            self.say(f'Answer {len(self.server.requests)} to: {last}')
        elif scenario() is False:
            return
        self.chunk({'choices': [{'index': 0, 'delta': {}, 'finish_reason': 'stop'}]})
        self.chunk({'choices': [], 'usage': {'prompt_tokens': 1000, 'completion_tokens': 24, 'total_tokens': 1024}})
        self.send('data: [DONE]\n\n')

    def send(self, text):
        self.wfile.write(text.encode())
        self.wfile.flush()

    def chunk(self, fields):
        self.send('data: ' + json.dumps({'id': 'chatcmpl-1', 'object': 'chat.completion.chunk', 'created': 1,
                                         'model': MODEL, **fields}) + '\n\n')

    def delta(self, delta):
        self.chunk({'choices': [{'index': 0, 'delta': delta, 'finish_reason': None}]})
        time.sleep(self.server.delay_s)

    def say(self, text, field='content'):
        for word in words(text):
            self.delta({field: word})

    def say_markdown(self):
        self.say(MARKDOWN)

    def say_hostile(self):
        self.say(HOSTILE)

    def say_lines(self):
        self.say('\n\n'.join(f'Line {i}.' for i in range(60)))

    def say_endless(self):
        try:
            while True:
                self.delta({'content': 'more '})
        except OSError:
            self.server.gone.set()
            return False

    def say_pause(self):
        self.say('The first half, ')
        self.server.go_on.wait()
        self.say('and the second.')

    def say_think(self):
        self.say('I should think about this for a while.', 'reasoning')
        self.server.go_on.wait()
        self.say('It is **42**.')

    def say_tags(self):
        self.say('<think>\nin the content\n</think>\n\nThe rest.')

    def say_tool(self):
        call = {'index': 0, 'id': 'call_1', 'type': 'function', 'function': {'name': 'get_weather', 'arguments': ''}}
        self.delta({'tool_calls': [call]})
        for part in words('{"city": "Paris", "days": 2}'):
            self.delta({'tool_calls': [{'index': 0, 'function': {'arguments': part}}]})

    def say_fail(self):
        self.say('Half of it')
        self.send('data: {"error": {"message": "worker 1 died: signal 9", "type": "InternalServerError", '
                  '"code": 500}}\n\ndata: [DONE]\n\n')
        return False

    def say_break(self):
        self.say('Half of it')
        return False


if __name__ == '__main__':
    with MockServer(Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]).read_text('utf-8'),
                    int(sys.argv[3]) if len(sys.argv) > 3 else 0) as mock:
        print(mock.url, flush=True)
        threading.Event().wait()
