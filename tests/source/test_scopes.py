"""What a chunk in the middle of a definition is said to be a part of, in each language that matters most."""

from __future__ import annotations

import json

import pytest

from kvd.source.chunker import MAX_BYTES
from kvd.source.content import read_content
from kvd.source.languages import has_grammar, language_of

LINES = 160


def body(line: str) -> str:
    """More than one chunk of statements; the last of them is what is looked for."""
    return "".join(line.replace("N", str(number)) + "\n" for number in range(LINES)) + line.replace("N", "99999") + "\n"


CASES = {
    "a.py": (
        "import os\n\n\nclass Store:\n    def save(self, item):\n" + body("        value_N = item.call(N)") + "\n\n"
        "def load(path):\n    return path\n",
        ("python", "Store.save", {"Store", "save", "load"}),
    ),
    "a.js": (
        "class Store {\n  save(item) {\n" + body("    const valueN = item.call(N);") + "  }\n}\n"
        "export const load = (path) => path;\n",
        ("javascript", "Store.save", {"Store", "save", "load"}),
    ),
    "a.ts": (
        "export class Store {\n  save(item: Item): void {\n"
        + body("    const valueN: number = item.call(N);")
        + "  }\n}\n"
        "interface Item { call(n: number): number }\n",
        ("typescript", "Store.save", {"Store", "save", "Item"}),
    ),
    "a.tsx": (
        "export class View extends Component {\n  render(): Element {\n"
        + body("    const valueN = <b>{this.call(N)}</b>;")
        + "  }\n}\nfunction App() { return <View/>; }\n",
        ("tsx", "View.render", {"View", "render", "App"}),
    ),
    "a.go": (
        "package a\n\ntype Store struct{}\n\nfunc (s *Store) Save(item Item) {\n"
        + body("\tvalueN := item.Call(N)")
        + "}\n\n"
        "func Load() {}\n",
        ("go", "Store.Save", {"Store", "Store.Save", "Load"}),
    ),
    "a.rs": (
        "struct Store;\n\nimpl Store {\n    fn save(&self, item: Item) {\n"
        + body("        let value_N = item.call(N);")
        + "    }\n}\n\nfn load() {}\n",
        ("rust", "Store.save", {"Store", "save", "load"}),
    ),
    "A.java": (
        "package a;\n\nclass Store {\n    void save(Item item) {\n"
        + body("        int valueN = item.call(N);")
        + "    }\n}\n\ninterface Item {}\n",
        ("java", "Store.save", {"Store", "save", "Item"}),
    ),
    "a.c": (
        "struct store { int x; };\n\nstatic int *save(struct store *s)\n{\n"
        + body("    int value_N = call(s, N);")
        + "}\n\nvoid load(void) {}\n",
        ("c", "save", {"store", "save", "load"}),
    ),
    "a.cpp": (
        "namespace app {\nclass Store {\n public:\n  void save(Item item) {\n"
        + body("    auto value_N = item.call(N);")
        + "  }\n};\n}\nvoid load() {}\n",
        ("cpp", "app.Store.save", {"app", "Store", "save", "load"}),
    ),
    "a.cs": (
        "namespace App {\n  class Store {\n    void Save(Item item) {\n"
        + body("      var valueN = item.Call(N);")
        + "    }\n  }\n}\n",
        ("csharp", "App.Store.Save", {"App", "Store", "Save"}),
    ),
    "a.rb": (
        "module App\n  class Store\n    def save(item)\n"
        + body("      value_N = item.call(N)")
        + "    end\n  end\nend\n",
        ("ruby", "App.Store.save", {"App", "Store", "save"}),
    ),
    "a.php": (
        "<?php\nclass Store {\n  function save($item) {\n"
        + body("    $valueN = $item->call(N);")
        + "  }\n}\nfunction load() {}\n",
        ("php", "Store.save", {"Store", "save", "load"}),
    ),
    "a.swift": (
        "class Store {\n  func save(item: Item) {\n"
        + body("    let valueN = item.call(N)")
        + "  }\n}\nfunc load() {}\n",
        ("swift", "Store.save", {"Store", "save", "load"}),
    ),
    "a.kt": (
        "class Store {\n    fun save(item: Item) {\n"
        + body("        val valueN = item.call(N)")
        + "    }\n}\nfun load() {}\n",
        ("kotlin", "Store.save", {"Store", "save", "load"}),
    ),
    "a.scala": (
        "object App {\n  class Store {\n    def save(item: Item): Unit = {\n"
        + body("      val valueN = item.call(N)")
        + "    }\n  }\n}\n",
        ("scala", "App.Store.save", {"App", "Store", "save"}),
    ),
    "a.lua": (
        "local Store = {}\n\nfunction Store.save(item)\n"
        + body("  local value_N = item.call(N)")
        + "end\n\nlocal function load() end\n",
        ("lua", "Store.save", {"Store.save", "load"}),
    ),
    "a.sh": (
        "#!/bin/sh\nsave() {\n" + body('  value_N="$(call N)"') + "}\n\nfunction load {\n  true\n}\n",
        ("bash", "save", {"save", "load"}),
    ),
    "a.ex": (
        "defmodule App.Store do\n  def save(item) do\n" + body("    value_N = call(item, N)") + "  end\nend\n",
        ("elixir", "App.Store.save", {"App.Store", "save"}),
    ),
    "a.hs": (
        "module Store where\n\ndata Item = Item Int\n\nsave :: Item -> IO ()\nsave item = do\n"
        + body("  valueN <- call item N")
        + "\nload :: Int\nload = 1\n",
        ("haskell", "save", {"Item", "save", "load"}),
    ),
    "a.zig": (
        "const Store = struct {\n    pub fn save(self: *Store) void {\n"
        + body("        const value_N = self.call(N);")
        + "    }\n};\n\npub fn load() void {}\n",
        ("zig", "Store.save", {"Store", "save", "load"}),
    ),
    "a.sql": (
        "CREATE TABLE items (id INT);\n\nCREATE VIEW totals AS SELECT\n"
        + body("  sum(value_N) AS total_N,")
        + "  1 AS one FROM items;\n",
        ("sql", "totals", {"items", "totals"}),
    ),
    "a.html": (
        '<!DOCTYPE html>\n<html>\n<body>\n<main id="store">\n'
        + body('  <p class="valueN">N</p>')
        + "</main>\n</body>\n</html>\n",
        ("html", "store", {"store"}),
    ),
    "a.css": (
        ".store {\n" + body("  --value-N: N;") + "}\n\n#load { color: red }\n@media print { .page { margin: 0 } }\n",
        ("css", ".store", {".store", "#load"}),
    ),
    "a.json": (
        '{\n"store": {\n' + body('  "valueN": N,') + '  "last": 1\n},\n"load": 2\n}\n',
        ("json", "store", {"store", "load"}),
    ),
    "a.yaml": (
        "store:\n" + body("  value_N: N") + "load: 2\n",
        ("yaml", "store", {"store", "load"}),
    ),
    "a.toml": (
        "[store.main]\n" + body("value_N = N") + "\n[load]\nx = 1\n",
        ("toml", "store.main", {"store.main", "load"}),
    ),
    "a.md": (
        "# Guide\n\n## Storing\n\n" + body("Value N is called.\n") + "\n## Loading\n\nText.\n",
        ("markdown", "Guide.Storing", {"Guide", "Storing", "Loading"}),
    ),
    "Dockerfile": (
        "FROM debian AS build\n" + body("COPY fileN /data") + "\nFROM build AS final\nCMD true\n",
        ("dockerfile", "build", {"build", "final"}),
    ),
}


@pytest.mark.parametrize("path", sorted(CASES))
def test_scope_and_symbols(path: str) -> None:
    text, (language, scope, symbols) = CASES[path]
    assert language_of(path, text) == language
    assert has_grammar(language)
    content = read_content(path, text.encode())
    assert (content.skipped, content.by_lines) == ("", False)
    assert symbols <= {symbol for item in content.chunks for symbol in item.symbols}
    (found,) = (item.chunk for item in content.chunks if "99999" in item.chunk.text)
    assert found.scope == scope
    assert found.text.split("\n")[0] in text
    lines = text.split("\n")
    assert "99999" in "\n".join(lines[found.start_line - 1 : found.end_line])
    assert all(len(item.chunk.text.encode()) <= MAX_BYTES for item in content.chunks)


def test_scope_and_symbols_in_a_notebook() -> None:
    text, (_, scope, symbols) = CASES["a.py"]
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": text.splitlines(keepends=True)}
    data = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)
    content = read_content("a.ipynb", data.encode())
    assert symbols <= {symbol for item in content.chunks for symbol in item.symbols}
    (found,) = (item.chunk for item in content.chunks if "99999" in item.chunk.text)
    assert found.scope == scope
