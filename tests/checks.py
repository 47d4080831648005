"""checks.py - what the test scripts count with: check(), and end() for the last line."""
import os
import sys

passed = failed = 0


def check(ok, what):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print(f'FAIL {os.path.basename(sys.argv[0])}: {what}')


def end(area):
    print(f'{area} {passed} passed, {failed} failed')
    sys.exit(failed != 0)
