from __future__ import annotations

from kvd.recall.overview import of_files


def test_folders_are_in_the_order_of_their_names_with_their_languages() -> None:
    files = [
        ("src/app/a.py", "python"),
        ("src/app/b.js", "javascript"),
        ("src/app/c.js", "javascript"),
        ("src/app/e/f.py", "python"),
    ]
    files += [("src/app/deep/er/d.css", "css"), ("README.md", "markdown"), ("bin/x", "")]
    assert of_files(files) == ". (markdown), bin, src/app (javascript, python)"


def test_the_largest_folders_are_named_and_nothing_else_of_a_name_counts() -> None:
    files = [(f"d{number:02}/{name}", "go") for number in range(12) for name in range(number + 1)]
    assert of_files(files).split(", ") == [f"d{number:02} (go)" for number in range(2, 12)]
    assert of_files([("a\nb\x1b/c", "go")]) == "a?b? (go)"
    assert of_files([]) == ""
