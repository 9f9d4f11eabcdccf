#!/usr/bin/python3
"""
A page as a test: its commands in their order, and the output that the page promises.

    page.py PAGE DIR           writes each command to a file of DIR, named by its number
    page.py PAGE --compare OUT compares what the commands have printed, as tests/vm/first-hour-guest writes it

A block is `console`: lines that begin with "# " are commands, the lines below are their output. Blanks count as one.
In the output `…` stands for any text of a line, and in a line of its own for any lines, or none.
"""

import dataclasses
import pathlib
import re
import sys

# A command that takes long says so on stderr, every few seconds.
PROGRESS = re.compile(r"[A-Z]\w+ \w+: (working for \d+ s|\d+ %, .*)")


@dataclasses.dataclass
class Command:
    """A command of a page."""

    line: int
    text: str
    expected: list

    def difference(self, output):
        """Says how an output differs from the promised one; None if it does not."""
        found = [one(line) for line in output.splitlines() if not PROGRESS.fullmatch(line)]
        wanted = [one(line) for line in self.expected]
        if re.fullmatch("".join(map(pattern, wanted)), "".join(line + "\n" for line in found)):
            return None
        return f"line {self.line}, '{self.text}': found {found}, expected {wanted}"


def one(line):
    """The line with single blanks."""
    return " ".join(line.split())


def pattern(line):
    """The regular expression of an expected line."""
    if line == "…":
        return r"(?:.*\n)*?"
    return ".*".join(map(re.escape, line.split("…"))) + r"\n"


def commands(page):
    """The commands of a page; fails if a block is not of the kind that is run."""
    found, kind, here = [], None, None
    for number, line in enumerate(pathlib.Path(page).read_text().splitlines(), 1):
        if here:
            # A here-document belongs to its command.
            found[-1].text += "\n" + line
            here = None if line == here else here
        elif line.startswith("```"):
            kind = None if kind else line[3:] or "?"
            if kind not in (None, "console"):
                raise ValueError(f"{page}:{number}: a block of kind '{kind}' cannot be run")
        elif kind and line.startswith("# "):
            found.append(Command(number, line[2:], []))
            here = "END" if "<<END" in line else None
        elif kind:
            found[-1].expected.append(line)
    return found


def compare(page, output):
    """Compares the output of all commands with the page; gives the differences."""
    parts = re.split(r"^@ (\d+|end)\n", pathlib.Path(output).read_text(), flags=re.MULTILINE)
    said = dict(zip(parts[1::2], parts[2::2]))
    for number, command in enumerate(commands(page), 1):
        text, _, code = said.get(str(number), "it was not run").partition("@ exit ")
        # A command that resets the machine says nothing.
        if code.strip() not in ("", "0"):
            yield f"line {command.line}, '{command.text}' ended with {code.strip()}: {text.strip()}"
        elif difference := command.difference(text):
            yield difference


def main():
    page, where = sys.argv[1], sys.argv[2]
    if where == "--compare":
        differences = list(compare(page, sys.argv[3]))
        print("\n".join(differences) or f"{page}: {len(commands(page))} commands do what it says")
        return 1 if differences else 0
    for number, command in enumerate(commands(page), 1):
        (pathlib.Path(where) / str(number)).write_text(command.text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
