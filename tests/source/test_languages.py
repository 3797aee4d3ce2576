from __future__ import annotations

import pytest
from tree_sitter import Query
from tree_sitter_language_pack import get_language

from kvd.source import languages, syntax
from kvd.source.chunker import chunk_text
from kvd.source.languages import has_grammar, language_of

GRAMMARS = sorted({name for name in languages._BY_SUFFIX.values() if has_grammar(name)})


@pytest.mark.parametrize(
    ("path", "text", "language"),
    [
        ("a/b.py", "", "python"),
        ("B.PY", "", "python"),
        ("x.tsx", "", "tsx"),
        ("Makefile", "", "make"),
        ("sub/Dockerfile", "", "dockerfile"),
        ("Dockerfile.dev", "", "dockerfile"),
        ("CMakeLists.txt", "", "cmake"),
        ("notes.txt", "", "text"),
        ("a.ipynb", "", "notebook"),
        ("bin/tool", "#!/usr/bin/env python3\n", "python"),
        ("bin/tool", "#!/usr/bin/env -S FOO=1 node --flag\n", "javascript"),
        ("bin/tool", "#! /bin/sh -e\n", "bash"),
        ("bin/tool", "#!/opt/odd\n", ""),
        ("LICENSE", "MIT\n", ""),
        (".bashrc", "", "bash"),
        (".py", "", ""),
        ("a.unknownext", "", ""),
    ],
)
def test_language_of(path: str, text: str, language: str) -> None:
    assert language_of(path, text) == language


def test_there_are_grammars_for_many_languages() -> None:
    assert len(GRAMMARS) >= 60


@pytest.mark.parametrize("language", GRAMMARS)
def test_every_grammar_loads_and_takes_its_query(language: str) -> None:
    grammar = syntax._grammar(language)
    assert grammar is not None
    if grammar.kinds.query.strip():
        assert isinstance(Query(get_language(language), grammar.kinds.query), Query)


SAMPLES = {
    "python": ("class A:\n    @property\n    def b(self):\n        pass\n\nLIMIT = 1\n", {"A", "b", "LIMIT"}),
    "javascript": ("export class A { b() {} }\nconst c = () => 1;\nfunction d() {}\n", {"A", "b", "c", "d"}),
    "typescript": ("interface A { x: number }\ntype B = string;\nexport enum C { D }\n", {"A", "B", "C"}),
    "tsx": ("export function App(): JSX.Element { return <a/>; }\n", {"App"}),
    "go": ("type A struct {}\nfunc (a *A) Do() {}\nfunc Run() {}\n", {"A", "A.Do", "Run"}),
    "rust": (
        "pub struct A;\nimpl A { fn b(&self) {} }\nenum C { D }\ntrait E {}\nmod f {}\n",
        {"A", "b", "C", "E", "f"},
    ),
    "java": ("class A { A() {} void b() {} }\ninterface C {}\n", {"A", "b", "C"}),
    "kotlin": ("class A { fun b() {} }\nobject C\n", {"A", "b", "C"}),
    "swift": ("struct A { func b() {} }\nprotocol C {}\n", {"A", "b", "C"}),
    "csharp": ("namespace N { class A { void B() {} } }\n", {"N", "A", "B"}),
    "c": ("struct a { int x; };\nstatic int *b(void) { return 0; }\n#define C 1\n", {"a", "b", "C"}),
    "cpp": ("namespace n { class A { void b(); }; }\nvoid n::A::b() {}\n", {"n", "A", "n::A::b"}),
    "ruby": ("module A\n  class B\n    def c; end\n    def self.d; end\n  end\nend\n", {"A", "B", "c", "d"}),
    "php": ("<?php\nclass A { function b() {} }\nfunction c() {}\n", {"A", "b", "c"}),
    "lua": ("function M.a() end\nlocal function b() end\nM.c = function() end\n", {"M.a", "b", "M.c"}),
    "scala": ("object A { def b = 1 }\ntrait C\n", {"A", "b", "C"}),
    "elixir": ("defmodule A do\n  def b(x), do: x\n  defp c, do: 1\nend\n", {"A", "b", "c"}),
    "clojure": ("(ns a.b)\n(defn c [x] x)\n", {"a.b", "c"}),
    "haskell": ("module A where\nf :: Int\nf = 1\ndata B = C\n", {"f", "B"}),
    "bash": ("a() { echo; }\nfunction b { echo; }\n", {"a", "b"}),
    "sql": ("CREATE TABLE a (id INT);\nCREATE VIEW b AS SELECT 1;\n", {"a", "b"}),
    "proto": ('syntax = "proto3";\nmessage A {}\nservice B { rpc C (A) returns (A); }\n', {"A", "B", "C"}),
    "hcl": ('resource "aws_vpc" "main" {\n  x = 1\n}\n', {"main"}),
    "markdown": ("# Title\n\ntext\n\n## Part two\n\nmore\n", {"Title", "Part two"}),
    "zig": ("pub fn a() void {}\n", {"a"}),
    "dart": ("class A { void b() {} }\n", {"A"}),
    "perl": ("sub a { 1 }\n", {"a"}),
    "r": ("a <- function(x) x\n", {"a"}),
    "julia": ("struct A end\nfunction b() end\n", {"A", "b"}),
    "erlang": ("-module(m).\na(X) -> X.\n", {"a"}),
    "ocaml": ("let a x = x\nmodule B = struct end\ntype c = int\n", {"a", "B", "c"}),
    "solidity": ("contract A { function b() public {} }\n", {"A", "b"}),
    "powershell": ("function Get-A { 1 }\n", {"Get-A"}),
    "graphql": ("type A { b: Int }\n", {"A"}),
    "cmake": ("function(a x)\nendfunction()\n", {"a"}),
    "make": ("all: a\n\techo\n", {"all"}),
    "css": (".a { color: red }\n", {".a"}),
    "vim": ("function! A()\nendfunction\n", {"A"}),
    "nim": ("proc a() = discard\n", {"a"}),
    "fortran": ("subroutine a()\nend subroutine\n", {"a"}),
    "thrift": ("struct A { 1: i32 b }\n", {"A"}),
    "scheme": ("(define (a x) x)\n", {"a"}),
    "gdscript": ("func a():\n\tpass\n", {"a"}),
    "commonlisp": ("(defun a (x) x)\n", {"a"}),
    "elisp": ("(defun a (x) x)\n", {"a"}),
    "fsharp": ("module A\nlet b x = x\n", {"b"}),
    "objc": ("@interface A\n- (void)b;\n@end\n@implementation A\n- (void)b {}\n@end\n", {"A"}),
    "verilog": ("module a(input b);\nendmodule\n", {"a"}),
    "vhdl": ("entity a is\nend a;\n", {"a"}),
    "tcl": ("proc a {x} { return $x }\n", {"a"}),
    "gleam": ("pub fn a() { 1 }\n", {"a"}),
    "wgsl": ("fn a() {}\n", {"a"}),
    "prisma": ("model A {\n  id Int\n}\n", {"A"}),
    "nix": ("{ a = 1; }\n", set()),
    "groovy": ("def a() { 1 }\nclass B {}\n", set()),
    "matlab": ("function a(x)\nend\n", {"a"}),
    "pascal": ("program P;\nprocedure A; begin end;\nbegin end.\n", {"A"}),
    "ada": ("procedure A is\nbegin\n null;\nend A;\n", {"A"}),
    "d": ("class A { void b() {} }\n", {"A", "b"}),
    "elm": ("module A exposing (..)\nb x = x\n", {"b"}),
    "starlark": ("def a():\n    pass\n", {"a"}),
    "fish": ("function a\nend\n", {"a"}),
    "rst": ("Title\n=====\n\ntext\n\nPart two\n--------\n\nmore\n", {"Title", "Part two"}),
    "yaml": ("services:\n  web: 1\nvolumes: 2\n", {"services", "volumes"}),
    "json": ('{"scripts": {"build": "x"}, "name": "y"}\n', {"scripts", "name"}),
    "toml": ("[a.b]\nc = 1\n", {"a.b"}),
    "cuda": ("__global__ void a(int *x) {}\n", {"a"}),
    "glsl": ("void a() {}\n", {"a"}),
    "luau": ("local function a() end\n", {"a"}),
    "odin": ("package p\na :: proc() {}\n", {"a"}),
    "racket": ("(define (a x) x)\n", {"a"}),
    "purescript": ("module A where\nb x = x\n", {"b"}),
    "haxe": ("class A { function b() {} }\n", {"A", "b"}),
    "puppet": ("class a { }\n", {"a"}),
    "bicep": ("param a string\n", set()),
}


@pytest.mark.parametrize("language", sorted(SAMPLES))
def test_definitions_are_named(language: str) -> None:
    text, names = SAMPLES[language]
    found = {name for item in chunk_text("f", text, language) for name in item.symbols}
    assert names <= found
