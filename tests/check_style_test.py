#!/usr/bin/env python3
"""tools/check_style on a small checkout that breaks each of its rules."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECK_STYLE = Path('tools/check_style').resolve()

ARCHITECTURE = '''# Architecture

| folder | holds | may import |
|---|---|---|
| `base` | errors | nothing |
| `kernels` | operations | base |
| `runtime` | the engine | kernels, base |
'''


class CheckStyleTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.write('docs/architecture.md', ARCHITECTURE)
        self.write('base/BUILD.bazel', 'cc_library(name = "base", hdrs = ["error.h"])\n')
        self.write('base/error.h', '#pragma once\n')
        self.write('kernels/BUILD.bazel', 'cc_library(name = "gemm", hdrs = ["gemm.h"], srcs = ["cpu/gemm.cc"])\n')
        self.write('kernels/gemm.h', '#pragma once\n#include "base/error.h"\n')
        self.write('kernels/cpu/gemm.cc', '#include "kernels/gemm.h"\n')
        self.write('kernels/README.md', '| GEMM | bf16 | any M | CPU | `cpu/gemm.cc` |\n')
        self.write('runtime/BUILD.bazel', 'cc_library(name = "engine", srcs = ["engine.cc"])\n')
        self.write('runtime/engine.cc', '#include "base/error.h"\n#include "kernels/gemm.h"\n')

    def tearDown(self):
        self.folder.cleanup()

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def append(self, path, text):
        self.write(path, (self.root / path).read_text() + text)

    def check(self, *args):
        """The findings, without the last line, which counts them."""
        run = subprocess.run([CHECK_STYLE, f'--root={self.root}', *args], capture_output=True, text=True, check=False)
        self.assertEqual(run.stderr, '')
        *findings, last = run.stdout.splitlines()
        self.assertEqual(last, f'{len(findings)} findings')
        self.assertEqual(run.returncode, 1 if findings else 0)
        return findings

    def assert_finds(self, *expected, args=()):
        findings = self.check(*args)
        self.assertEqual(len(findings), len(expected), findings)
        for finding, part in zip(findings, expected):
            self.assertIn(part, finding)

    def test_a_clean_checkout_has_no_findings(self):
        self.assert_finds()

    def test_code_ends_at_column_100(self):
        self.write('base/error.h', '#pragma once\n' + '/' * 100 + '\n' + '/' * 101 + '\n')
        self.assert_finds('base/error.h:3: 101 columns; at most 100')

    def test_columns_are_characters_and_not_bytes(self):
        self.write('base/error.h', '// ' + 'é' * 97 + '\n')
        self.assert_finds()

    def test_docs_end_at_column_120_but_for_tables_and_output(self):
        long = 'x' * 121
        self.write('docs/a.md', f'{long}\n\n| {long} |\n\n```\n{long}\n```\n\n    {long}\n{long}\n')
        self.assert_finds('docs/a.md:1: 121 columns', 'docs/a.md:10: 121 columns')

    def test_private_words_are_found_in_every_spelling(self):
        self.append('base/error.h', '\n'.join([
            'int draw_tokens;', 'int DrawTokens;', '// It draws a picture, and may draw tokens.', 'int FusedMatvec();',
            'constexpr int kMatvecRows = 1;', '#define MATVEC 1', '// Products are GEMMs.', '']))
        self.assert_finds(*(f'base/error.h:{line}: ' for line in range(2, 9)))
        self.assertIn("'DrawTokens'; the field's word is: sample tokens", self.check()[1])

    def test_words_that_only_contain_a_private_word_are_fine(self):
        self.append('base/error.h', '// productive, production, crewed, recommend, screw\nint amendment;\n')
        self.assert_finds()

    def test_spellings_of_others_are_allowed(self):
        self.append('base/error.h', 'int x = std::inner_product(a, b, c, 0);\n')
        self.assert_finds()

    def test_some_words_are_private_in_code_alone(self):
        self.append('base/error.h', '// Nobody asked, most of all.\nint asked_ = f("asked");\nint most_rows;\n')
        self.assert_finds('base/error.h:3: ', 'base/error.h:4: ')

    def test_some_words_are_private_in_some_folders_alone(self):
        self.append('base/error.h', '// Draws a line.\n')
        self.append('runtime/engine.cc', '// Draws a token.\n')
        self.assert_finds("runtime/engine.cc:3: 'Draws'; the field's word is: samples")

    def test_comments_are_sentences(self):
        self.append('base/error.h', '\n'.join([
            '', '  // Of a rank.', '/// Of course', 'int x;  // so many rows', '// So many of them.', '// Not so manyfold.', '']))
        self.append('kernels/gemm.h', '// Of a rank.\n')
        self.write('python/BUILD.bazel', 'cc_library(name = "module", srcs = ["module.cc"])\n')
        self.write('python/module.cc', '// Of a rank.\n')
        self.assert_finds('base/error.h:3: write a sentence', 'base/error.h:5: write the number',
                          'base/error.h:6: write the number', 'kernels/gemm.h:3: write a sentence')

    def test_file_names_are_words_too(self):
        self.write('base/skinny.h', '')
        self.assert_finds('base/skinny.h:1: in its name', args=['--only=words'])

    def test_docs_and_scripts_have_no_private_words(self):
        self.write('docs/a.md', 'The mend.\n\n`2026-11-22-h200-x1-kv-ahead.json`\n')
        self.write('tools/run', '# The poorest.\n')
        self.assert_finds('docs/a.md:1: ', 'tools/run:1: ')

    def test_an_include_that_the_table_does_not_allow_is_found(self):
        self.append('kernels/gemm.h', '#include "runtime/engine.h"\n')
        self.assert_finds('kernels/gemm.h:3: kernels may not import runtime')

    def test_tests_may_include_what_they_like(self):
        self.write('kernels/gemm_test.cc', '#include "runtime/engine.h"\n')
        self.append('kernels/BUILD.bazel', 'nvllm_test(name = "gemm_test", srcs = ["gemm_test.cc", "help.h"])\n')
        self.write('kernels/help.h', '#include "runtime/engine.h"\n')
        self.append('kernels/gemm_test.cc', '#include "kernels/help.h"\n')
        self.assert_finds()

    def test_an_import_that_nobody_uses_is_found(self):
        self.write('runtime/engine.cc', '#include "kernels/gemm.h"\n')
        self.assert_finds('docs/architecture.md:7: runtime may import base, and does not')

    def test_a_circle_of_imports_is_found(self):
        self.write('docs/architecture.md', ARCHITECTURE.replace('| nothing |', '| kernels |'))
        self.append('base/error.h', '#include "kernels/gemm.h"\n')
        self.assert_finds('these import each other in a circle')

    def test_a_table_without_folders_is_found(self):
        self.write('docs/architecture.md', '# Architecture\n')
        self.assert_finds("has no table with a column 'may import'")

    def test_a_header_that_nobody_includes_is_found(self):
        self.write('runtime/engine.cc', '#include "base/error.h"\n')
        self.write('kernels/cpu/gemm.cc', '')
        self.assert_finds('docs/architecture.md:7: ', 'kernels/gemm.h:1: no file includes it')

    def test_a_source_file_that_bazel_does_not_know_is_found(self):
        self.write('runtime/rest.cc', '')
        self.assert_finds('runtime/rest.cc:1: runtime/BUILD.bazel does not name it')

    def test_names_that_rules_make_are_known(self):
        self.write('kernels/kernel.bzl', 'def kernel(name):\n    cc_library(srcs = ["cpu/" + name + "_avx2.cc"])\n')
        self.append('kernels/BUILD.bazel', 'load("//kernels:kernel.bzl", "kernel")\nkernel(name = "norm")\n')
        self.write('kernels/cpu/norm_avx2.cc', '')
        self.write('kernels/README.md', '| `cpu/{gemm,norm_avx2}.cc` |\n')
        self.assert_finds()

    def test_files_that_a_called_rule_globs_are_known_and_those_it_excludes_are_not(self):
        self.write('kernels/kernel.bzl', 'def room(name):\n    cc_library(srcs = glob(["*.cc"], exclude = ["*_old.cc"]))\n'
                   'def other(name):\n    cc_library(srcs = glob(["*.inc"]))\n')
        self.append('kernels/BUILD.bazel', 'load("//kernels:kernel.bzl", "room")\nroom(name = "room")\n')
        for name in ('a.cc', 'b.inc'):
            self.write('kernels/' + name, '#include "kernels/b.inc"\n')
        self.assert_finds('kernels/b.inc:1: kernels/BUILD.bazel does not name it')

    def test_files_and_headings_that_docs_name_exist(self):
        self.write('docs/a.md', '''# One `page`: here

`base/error.h`, `kernels/cpu/gemm.cc`, `cpu/gemm.cc` and `model/families/NAME.cc` are no findings
[a](architecture.md), [b](../kernels/README.md), [c](#one-page-here), [d](architecture.md#architecture), [e](https://x)
`base/none.h`
[a](none.md), [b](#none), [c](architecture.md#none)
''')
        self.assert_finds('docs/a.md:5: base/none.h: there is no such file', 'docs/a.md:6: #none: there is no such heading',
                          'docs/a.md:6: architecture.md#none: there is no such heading',
                          'docs/a.md:6: none.md: there is no such file')

    def test_a_kernel_that_the_table_does_not_name_is_found(self):
        self.write('kernels/README.md', 'An operation is `NAME.cc`.\n\n| `sm90/gemm.cu` |\n')
        self.assert_finds('does not name kernels/cpu/gemm.cc', 'sm90/gemm.cu: there is no such file')

    def test_a_missing_table_of_kernels_is_found(self):
        os.remove(self.root / 'kernels/README.md')
        self.assert_finds('kernels/README.md:1: is missing')

    def test_paths_limit_the_check_to_columns_and_words_in_them(self):
        self.append('base/error.h', '// luck\n')
        self.append('kernels/gemm.h', '// luck\n#include "runtime/engine.h"\n')
        self.assert_finds('kernels/gemm.h:3: ', args=['kernels'])


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
