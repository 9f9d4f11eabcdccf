"""Tests as functions, their lines and their reasons."""

import os
import pathlib
import shutil
import signal
import sys
import traceback

from .sandbox import Sandbox

_tests = []


class Failure(Exception):
    """Something is not as promised."""


class Unanswered(Failure):
    """Something was waited for that never came."""


class Skip(Exception):
    """This machine cannot run the test."""


def test(function):
    """Makes a function a test. It gets a sandbox of its own."""
    _tests.append(function)
    return function


def check(condition, reason):
    """Fails with a reason unless the condition holds."""
    if not condition:
        raise Failure(reason)


def check_equal(found, expected, what):
    """Fails unless the two are the same."""
    if found != expected:
        raise Failure(f"{what}: found {found!r}, expected {expected!r}")


def skip(reason):
    """Ends the test without a verdict."""
    raise Skip(reason)


def need(*tools):
    """Skips the test where a tool is missing."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        skip(f"{', '.join(missing)} is missing (make deps)")


def _one_line(error):
    return " ".join(str(error).split()) or type(error).__name__


def _interrupted(_signal, _frame):
    raise KeyboardInterrupt("told to end")


def _print_details(box, frames=True):
    """Prints where the test was when it failed, and the logs of its daemons."""
    lines = traceback.format_exc().splitlines() if frames else []
    for line in lines + [f"log: {line}" for line in box.logs]:
        print(f"     {line}")


def main():
    """Runs the tests of this file and prints a line for each."""
    # Whatever ends this program, the sandboxes are cleaned up.
    signal.signal(signal.SIGTERM, _interrupted)
    name = pathlib.Path(sys.argv[0]).stem
    failed = False
    for number, function in enumerate(_tests):
        title = f"{name}: {function.__name__}"
        box = Sandbox(pathlib.Path(os.environ["E2E_DIR"]) / str(number))
        try:
            with box:
                try:
                    function(box)
                    box.check_logs()
                except Skip:
                    raise
                except BaseException as error:
                    box.keep_logs()
                    if isinstance(error, (Unanswered, KeyboardInterrupt)):
                        box.keep_states()
                    raise
        except Skip as reason:
            print(f"skip {title}: {_one_line(reason)}")
        except KeyboardInterrupt as reason:
            print(f"FAIL {title}: {_one_line(reason)}")
            _print_details(box)
            sys.exit(1)
        except Exception as error:  # A test may fail in any way; the next one still runs.
            failed = True
            kind = "" if isinstance(error, Failure) else f"{type(error).__name__}: "
            print(f"FAIL {title}: {kind}{_one_line(error)}")
            _print_details(box, frames=not isinstance(error, Failure))
        else:
            print(f"ok   {title}")
    sys.exit(1 if failed else 0)
