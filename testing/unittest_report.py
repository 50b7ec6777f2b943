"""Runs a module's unittest cases as Bazel and tools/summarize expect it: with a test.xml that names each
case, and the reason of each that was skipped.

    if __name__ == '__main__':
        unittest_report.main('__main__')
"""

import os
import sys
import time
import unittest
import xml.etree.ElementTree as ElementTree


class Result(unittest.TextTestResult):
    """Notes what came of each case: [(name, seconds, 'failure' | 'skipped' | None, detail)]."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.cases = []
        self.started = time.monotonic()

    def startTest(self, test):
        super().startTest(test)
        self.started = time.monotonic()

    def note(self, test, verdict=None, detail=''):
        name = getattr(test, '_testMethodName', str(test)).removeprefix('test_').replace('_', ' ')
        self.cases.append((name, time.monotonic() - self.started, verdict, detail))

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(test, 'failure', self._exc_info_to_string(err, test))

    def addError(self, test, err):
        super().addError(test, err)
        self.note(test, 'failure', self._exc_info_to_string(err, test))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.note(test, 'failure', f'{subtest}: {self._exc_info_to_string(err, test)}')

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, 'skipped', reason)


def write_xml(cases):
    path = os.environ.get('XML_OUTPUT_FILE')
    if not path:
        return
    root = ElementTree.Element('testsuites')
    suite = ElementTree.SubElement(root, 'testsuite', name=os.environ.get('TEST_TARGET', ''))
    for name, seconds, verdict, detail in cases:
        case = ElementTree.SubElement(suite, 'testcase', name=name, time=f'{seconds:.3f}')
        if verdict:
            ElementTree.SubElement(case, verdict, message=detail)
    ElementTree.ElementTree(root).write(path, encoding='utf-8')


def skip_all(reason):
    """Ends the program: none of its cases can run here."""
    print(f'skipped: {reason}')
    write_xml([('all cases', 0, 'skipped', reason)])
    sys.exit(0)


def run(suite):
    """Returns the program's exit status. A suite without a case fails."""
    result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite)
    write_xml(result.cases)
    return 0 if result.wasSuccessful() and result.cases else 1


def main(module):
    sys.exit(run(unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:] or [module])))
