"""What must hold of a disturbed command's end."""

import re
import time

import processes

CULPRIT = re.compile(r'rank (\d+) \(pid (\d+)\) (?:died|is alive but stuck)')


def orphans(token, seconds):
    """Processes of the run that are still there after so long."""
    end = time.monotonic() + seconds
    while left := processes.processes_of(token):
        if time.monotonic() > end:
            return left
        time.sleep(0.02)
    return []


TERMINATED = 143  # told to end by SIGTERM before it served


def complaints(command, fault, struck, code, seconds, errors, is_heard, told_to_end):
    """Each broken promise, in words. seconds: from the fault to the end. is_heard: it has a standard error.
    told_to_end: by a SIGTERM of the campaign's, after the fault."""
    named = CULPRIT.search(errors)
    found = []
    # Workers that die before the server listens are not started again.
    restarted = struck and fault.victim and command.stays and command.restarts
    allowed = set(fault.good_ends(command) if struck else command.good_ends)
    if restarted or struck and not command.stays:
        allowed |= set(command.good_ends)  # it goes on, or was done before the fault could hurt
    hindered = told_to_end and struck and fault.victim  # a worker that is stopped hinders the start
    if hindered:
        allowed.add(TERMINATED)
    if code not in allowed:
        found.append(f'exit code {code}, not {" or ".join(map(str, sorted(allowed)))}')
    if code == 0 and not command.stays:
        found += filter(None, [command.complaint()])
    if struck and fault.bound is not None and not restarted and seconds > fault.bound:
        found.append(f'ended after {seconds:.2f} s, not {fault.bound:g} s')
    if named and not fault.victim:
        found.append(f'a culprit was named: {named.group()}')
    elif named and int(named.group(2)) != fault.victim:
        found.append(f'wrong culprit: {named.group()}, not pid {fault.victim}')
    elif (struck and fault.victim and is_heard and not named and code not in command.good_ends
          and not (hindered and code == TERMINATED)):
        found.append('no culprit was named')
    if 'Traceback' in errors or 'terminate called' in errors or 'CHECK' in errors:
        found.append('it crashed')
    return found
