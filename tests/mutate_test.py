#!/usr/bin/env python3
"""tools/mutate on a small repository, with a stand-in for Bazel."""

import os
import subprocess
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

MUTATE = Path('tools/mutate').resolve()
loader = SourceFileLoader('mutate', str(MUTATE))
mutate = module_from_spec(spec_from_loader('mutate', loader))
loader.exec_module(mutate)

# Its limit_test fails unless the comparison of limit() is there; it knows no test of lonely.cc. '>=' does not compile.
# broken_test never passes. slow_test notices changes of g(), and must not run where limit_test has noticed one.
BAZEL = '''#!/bin/sh
case $1 in
  query) case $* in *lonely*) ;; *) printf '//code:%s\\n' limit_test broken_test slow_test ;; esac ;;
  test)
    grep -q "a >= b" code/limit.cc && { echo "//code:limit_test FAILED TO BUILD"; exit 1; }
    failed=
    for word; do
      case $word in
        *limit_test) grep -q "a < b" code/limit.cc && echo "$word PASSED in 0.1s" || failed="$word FAILED in 0.1s" ;;
        *broken_test) failed="$word TIMEOUT in 9.9s" ;;
        *slow_test) echo slow >> "$XDG_CACHE_HOME/slow"
          grep -q "c + d" code/limit.cc && echo "$word (cached) PASSED in 21.0s" || failed="$word FAILED in 9s" ;;
      esac
    done
    [ -z "$failed" ] || { echo "$failed"; exit 1; } ;;
esac
'''


def mutations(text):
    return [(old.strip(), new.strip()) for _, old, new in mutate.places(text)]


class PlacesTest(unittest.TestCase):
    def test_operators_and_truth_values_are_changed(self):
        self.assertEqual(mutations('return a < b && c == d || !(e + 1 > f);\n'),
                         [('<', '<='), ('&&', '||'), ('==', '!='), ('||', '&&'), ('+', '-'), ('>', '>=')])
        self.assertEqual(mutations('bool on = true, off = false;\n'), [('true', 'false'), ('false', 'true')])

    def test_templates_includes_and_names_are_not(self):
        self.assertEqual(mutations('#include <vector>\nstd::vector<int> is_true(Matrix<a> b);\n'
                                   'template <bool on = true>\nbool operator < (A a, A b);\n'), [])

    def test_comments_and_literals_are_not(self):
        self.assertEqual(mutations('// a < b\nf("x && y", R"(\n1 + 2)", \'"\');  /* true\n== */ a != b;\n'),
                         [('!=', '==')])

    def test_a_change_is_at_its_place(self):
        text = 'int x = 1\'000 + y;  // "\nif (a < b) return "a < b";\n'
        self.assertEqual(mutate.changed(text, mutate.places(text)[1]),
                         'int x = 1\'000 + y;  // "\nif (a <= b) return "a < b";\n')


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name, 'project')
        self.write('tools/mutate', MUTATE.read_text(), executable=True)
        self.write('code/BUILD.bazel', '')
        self.write('bin/bazel', BAZEL, executable=True)
        self.environment = {**os.environ, 'PATH': f'{self.root}/bin:{os.environ["PATH"]}',
                            'XDG_CACHE_HOME': f'{self.folder.name}/cache', 'GIT_CONFIG_GLOBAL': os.devnull}

    def tearDown(self):
        self.folder.cleanup()

    def write(self, path, text, executable=False):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755 if executable else 0o644)

    def run_on(self, *words):
        who = ['-c', 'user.name=n', '-c', 'user.email=n@example.org']
        for git in (['init', '-q'], ['add', '.'], [*who, 'commit', '-q', '-m', 'x']):
            subprocess.run(['git', *git], cwd=self.root, env=self.environment, check=True)
        return subprocess.run([str(self.root / 'tools/mutate'), *words], env=self.environment, capture_output=True,
                              text=True)

    def test_a_noticed_change_and_a_survivor_are_told_apart(self):
        self.write('code/limit.cc', 'bool f() { return a < b; }\nint g() { return c + d + e; }\n')
        done = self.run_on('--seed=1', 'code')
        self.assertRegex(done.stdout, r'noticed .*limit.cc:1:21: "<" becomes "<=": bool f\(\) { return a < b; }')
        self.assertRegex(done.stdout, r'noticed .*limit.cc:2:20: "\+" becomes "-"')
        self.assertRegex(done.stdout, r'survived .*limit.cc:2:24: "\+" becomes "-"')
        self.assertTrue(done.stdout.endswith('3 changes, 2 noticed, 1 survived\n'), done.stdout + done.stderr)
        self.assertEqual(done.returncode, 1)
        # Without a change, and with the two that limit_test does not notice.
        self.assertEqual(Path(self.folder.name, 'cache', 'slow').read_text(), 3 * 'slow\n')
        self.assertIn('a < b', (self.root / 'code/limit.cc').read_text())

    def test_tests_that_fail_without_a_change_say_nothing(self):
        self.write('code/limit.cc', 'int g() { return d - c; }\n')
        done = self.run_on('code')
        self.assertEqual(done.returncode, 1)
        self.assertIn('not one of them passes without a change', done.stderr)

    def test_what_no_test_links_survives(self):
        self.write('code/lonely.cc', 'bool on = true;\n')
        self.assertIn('1 changes, 0 noticed, 1 survived', self.run_on('code/lonely.cc').stdout)

    def test_a_change_that_does_not_compile_counts_for_nothing(self):
        self.write('code/limit.cc', 'bool f() { return a < b; }\nbool g() { return a > b; }\n')
        done = self.run_on('code')
        self.assertIn('no program', done.stdout)
        self.assertTrue(done.stdout.endswith('1 changes, 1 noticed, 0 survived\n'), done.stdout + done.stderr)
        self.assertEqual(done.returncode, 0)

    def test_a_folder_without_sources_is_refused(self):
        done = self.run_on('bin')
        self.assertEqual((done.returncode, done.stdout), (1, ''))
        self.assertIn('bin: no committed source file', done.stderr)


if __name__ == '__main__':
    unittest.main()
