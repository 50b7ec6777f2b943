#!/usr/bin/env python3
"""tools/mutate on a small repository, with a stand-in for Bazel that calls the compiler."""

import os
import subprocess
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

MUTATE = Path('tools/mutate').resolve()
SWITCHES = Path('tools/mutate_switches.h').resolve()
loader = SourceFileLoader('mutate', str(MUTATE))
mutate = module_from_spec(spec_from_loader('mutate', loader))
loader.exec_module(mutate)

# limit_test detects changes of limit(); slow_test those of sum(), and records that it ran;
# broken_test never passes, and lonely() has no callers. gpu_test would fail to build.
BAZEL = '''#!/bin/sh
programs=$XDG_CACHE_HOME/programs
case $1 in
  query) cat "$(dirname "$0")/rules.xml" ;;
  info) echo "$programs" ;;
  build)
    mkdir -p "$programs/code" && c++ -std=c++20 -w -c -I. -o "$programs/code.o" code/code.cc || exit 1
    for word; do
      case $word in
        //code:*) c++ -std=c++20 -w -o "$programs/code/${word#//code:}" "code/${word#//code:}.cc" "$programs/code.o" || exit 1 ;;
      esac
    done ;;
esac
'''
RULES = '''<query>
<rule class="cc_library" name="//code:code"><rule-input name="//code:code.cc"/></rule>
{}<rule class="cc_test" name="//code:gpu_test"><list name="tags"><string value="gpu"/></list>
<rule-input name="//code:code"/></rule>
</query>'''
RULE = '<rule class="cc_test" name="//code:{}"><rule-input name="//code:code"/></rule>\n'
TESTS = {
    'limit_test': 'int limit(int, int);\nint main() { return limit(1, 2) == 1 && limit(2, 2) == 2 ? 0 : 1; }\n',
    'broken_test': 'int main() { return 1; }\n',
    'slow_test': '''#include <unistd.h>
#include <fstream>
#include <string>
int sum(int, int);
int main(int, char** argv) {
  std::ofstream(argv[0] + std::string(".ran"), std::ios::app) << "ran\\n";
  ::usleep(300000);
  return sum(1, 2) == 3 ? 0 : 1;
}
''',
}


def mutations(text):
    return [(place.old.strip(), place.new.strip()) for place in mutate.places(text)]


def switched(text):
    return mutate.switched(text, list(enumerate(mutate.places(text), start=1))).replace('::nvllm_mutate::', '')


class PlacesTest(unittest.TestCase):
    def test_operators_and_truth_values_are_changed(self):
        self.assertEqual(mutations('return a < b && c == d || !(e + 1 > f);\n'),
                         [('<', '<='), ('&&', '||'), ('==', '!='), ('||', '&&'), ('+', '-'), ('>', '>=')])
        self.assertEqual(mutations('bool on = true, off = false;\n'), [('true', 'false'), ('false', 'true')])

    def test_templates_includes_names_and_constants_are_not(self):
        self.assertEqual(mutations('#include <vector>\nstd::vector<int> is_true(Matrix<a> b);\n'
                                   'template <bool on = true>\nbool operator < (A a, A b);\n'
                                   'inline constexpr int kEnd = kBegin + 1;\n'), [])

    def test_comments_and_literals_are_not(self):
        self.assertEqual(mutations('// a < b\nf("x && y", R"(\n1 + 2)", \'"\');  /* true\n== */ a != b;\n'),
                         [('!=', '==')])

    def test_a_switch_keeps_what_an_operator_combines(self):
        self.assertEqual(switched('x = a == b && f(c, d);\n'),
                         'x = both(2, bool(a == Place{1} == b), [&]() -> bool { return bool(f(c, d)); });\n')
        self.assertEqual(switched('return a || b && n::c;\n'),
                         'return either(1, bool(a), [&]() -> bool { return bool('
                         'both(2, bool(b), [&]() -> bool { return bool(n::c); })); });\n')
        self.assertEqual(switched('case A: return p ? a && true : !(x - 1);\n'),
                         'case A: return p ? both(1, bool(a), [&]() -> bool { return bool(truth(2, true)); })'
                         ' : !(x - Place{3} - 1);\n')


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name, 'project')
        self.write('tools/mutate', MUTATE.read_text(), executable=True)
        self.write('tools/mutate_switches.h', SWITCHES.read_text())
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

    def run_on(self, code, *tests):
        self.write('code/code.cc', code)
        self.write('bin/rules.xml', RULES.format(''.join(RULE.format(test) for test in tests)))
        for test in tests:
            self.write(f'code/{test}.cc', TESTS[test])
        who = ['-c', 'user.name=n', '-c', 'user.email=n@example.org']
        for git in (['init', '-q'], ['add', '.'], [*who, 'commit', '-q', '-m', 'x']):
            subprocess.run(['git', *git], cwd=self.root, env=self.environment, check=True)
        return subprocess.run([str(self.root / 'tools/mutate'), '--seed=1', 'code'], env=self.environment,
                              capture_output=True, text=True)

    def test_noticed_changes_and_survivors_are_told_apart(self):
        code = ('int limit(int a, int b) { return a < b ? a : b; }\nint sum(int a, int b) { return a + b; }\n'
                'bool lonely(int a, int b) { return a == b; }\n')
        done = self.run_on(code, 'limit_test', 'slow_test')
        self.assertRegex(done.stdout, r'survived .*1 of 1 tests +code/code.cc:1:36: "<" becomes "<=": int limit')
        self.assertRegex(done.stdout, r'noticed .*//code:slow_test +code/code.cc:2:34: "\+" becomes "-"')
        self.assertRegex(done.stdout, r'survived .*executed by no test +code/code.cc:3:')
        self.assertTrue(done.stdout.endswith('3 changes, 1 noticed, 2 survived\n'), done.stdout + done.stderr)
        self.assertEqual(done.returncode, 1)
        self.assertEqual((self.root / 'code/code.cc').read_text(), code)

    def test_slow_tests_run_only_where_the_quick_notice_nothing(self):
        done = self.run_on('int sum(int a, int b) { return a + b; }\n'
                           'int limit(int a, int b) { return sum(a, 1) == 2 ? a : b; }\n', 'slow_test', 'limit_test')
        self.assertTrue(done.stdout.endswith('2 changes, 2 noticed, 0 survived\n'), done.stdout + done.stderr)
        self.assertEqual(done.returncode, 0)
        # It ran once without a change, and for none of the two changes that limit_test detects.
        self.assertEqual(Path(self.folder.name, 'cache/programs/code/slow_test.ran').read_text(), 'ran\n')

    def test_tests_that_fail_without_a_change_say_nothing(self):
        done = self.run_on('int limit(int a, int b) { return a - 0; }\n', 'broken_test')
        self.assertIn('//code:broken_test fails without a change, and is left out', done.stdout)
        self.assertIn('1 changes, 0 noticed, 1 survived', done.stdout)

    def test_what_does_not_compile_or_has_no_other_operator_counts_for_nothing(self):
        done = self.run_on('#include <string>\n#include <type_traits>\n'
                           'bool same(bool a) { return std::is_same_v<int, long> && a; }\n'
                           'int limit(int a, int b) { return (std::string("x") + "y").size() != 2 ? b : a; }\n',
                           'limit_test')
        self.assertTrue(done.stdout.endswith('1 changes, 1 noticed, 0 survived\n'), done.stdout + done.stderr)
        self.assertEqual(done.returncode, 0)

    def test_a_folder_without_sources_is_refused(self):
        self.run_on('', 'limit_test')
        done = subprocess.run([str(self.root / 'tools/mutate'), 'bin'], env=self.environment, capture_output=True,
                              text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ''))
        self.assertIn('bin: no committed source file', done.stderr)


if __name__ == '__main__':
    unittest.main()
