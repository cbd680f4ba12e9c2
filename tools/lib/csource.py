"""What the check_* tools share: finding our files, telling code from comments, reporting."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def files(root, folders, suffixes=(".c", ".h")):
    """Paths relative to root, sorted; build trees and hidden folders left out."""
    found = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            parts = path.relative_to(root).parts
            if path.suffix in suffixes and path.is_file() and not any(
                    part.startswith((".", "build")) for part in parts):
                found.append(path.relative_to(root))
    return found


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def code_and_comments(text):
    """Two texts of the same shape: the code with comments and literals blanked, and the comments alone."""
    code, comments, at = [], [], 0
    for match in TOKEN.finditer(text):
        gap, token = text[at:match.start()], match.group()
        comment = token.startswith("/")
        code.append(gap + (blank(token) if comment else token[0] + blank(token[1:-1]) + token[-1]))
        comments.append(blank(gap) + (token if comment else blank(token)))
        at = match.end()
    code.append(text[at:])
    comments.append(blank(text[at:]))
    return "".join(code), "".join(comments)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def without_preprocessor(code):
    """Blanks directives with their continuation lines."""
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: blank(m.group()), code, flags=re.M)


def finish(name, problems, checked):
    """Prints what was found and gives the exit code."""
    for problem in problems:
        print(problem)
    print(f"{name}: {len(problems)} problem(s) in {checked}")
    return 1 if problems else 0


def self_test(name, check, cases):
    """Each case is (what, {path: text}, part of the problem expected or None): proves the check can fail."""
    import tempfile
    failed = 0
    for what, tree, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in tree.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            problems = check(root)
        good = not problems if expected is None else any(expected in problem for problem in problems)
        if not good:
            failed += 1
            print(f"{name}: self-test: {what}: expected {expected!r}, got {problems}")
    print(f"{name}: self-test: {len(cases)} cases, {failed} failed")
    return 1 if failed else 0


def run(name, check, cases, checked):
    """The main of a check: --self-test, or the tree."""
    if sys.argv[1:] == ["--self-test"]:
        return self_test(name, check, cases)
    return finish(name, check(ROOT), checked)
