"""Which language a file is in, and what a definition looks like in that language's grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

_BY_SUFFIX = {
    suffix: language
    for language, suffixes in {
        "ada": "adb ads",
        "astro": "astro",
        "bash": "sh bash zsh ksh bats",
        "bicep": "bicep",
        "c": "c",
        "clojure": "clj cljs cljc edn",
        "cmake": "cmake",
        "commonlisp": "lisp lsp cl",
        "cpp": "cpp cc cxx c++ hpp hh hxx h++ h ipp inl tpp",
        "csharp": "cs csx",
        "css": "css",
        "cuda": "cu cuh",
        "d": "d",
        "dart": "dart",
        "dockerfile": "dockerfile",
        "elisp": "el",
        "elixir": "ex exs",
        "elm": "elm",
        "erlang": "erl hrl",
        "fish": "fish",
        "fortran": "f90 f95 f03 f08 f for",
        "fsharp": "fs fsx",
        "gdscript": "gd",
        "gleam": "gleam",
        "glsl": "glsl vert frag comp",
        "go": "go",
        "gomod": "mod",
        "graphql": "graphql gql",
        "groovy": "groovy gradle",
        "haskell": "hs",
        "haxe": "hx",
        "hcl": "tf tfvars hcl",
        "html": "html htm xhtml",
        "ini": "ini cfg conf",
        "java": "java",
        "javascript": "js jsx mjs cjs",
        "json": "json jsonc json5 webmanifest",
        "julia": "jl",
        "kotlin": "kt kts",
        "latex": "tex sty cls",
        "lua": "lua",
        "luau": "luau",
        "make": "mk mak",
        "markdown": "md markdown mdx",
        "matlab": "matlab",
        "nim": "nim",
        "nix": "nix",
        "objc": "m mm",
        "ocaml": "ml",
        "ocaml_interface": "mli",
        "odin": "odin",
        "pascal": "pas pp dpr",
        "perl": "pl pm t",
        "php": "php phtml",
        "powershell": "ps1 psm1 psd1",
        "prisma": "prisma",
        "properties": "properties",
        "proto": "proto",
        "puppet": "puppet",
        "purescript": "purs",
        "python": "py pyi pyw",
        "r": "r",
        "racket": "rkt",
        "rst": "rst",
        "ruby": "rb rake gemspec ru",
        "rust": "rs",
        "scala": "scala sc sbt",
        "scheme": "scm ss",
        "scss": "scss",
        "solidity": "sol",
        "sql": "sql",
        "starlark": "bzl star",
        "svelte": "svelte",
        "swift": "swift",
        "tcl": "tcl",
        "thrift": "thrift",
        "toml": "toml",
        "tsx": "tsx",
        "typescript": "ts mts cts",
        "verilog": "v sv svh",
        "vhdl": "vhd vhdl",
        "vim": "vim",
        "vue": "vue",
        "wgsl": "wgsl",
        "xml": "xml xsd xsl xslt plist csproj props targets",
        "yaml": "yaml yml",
        "zig": "zig",
        "text": "txt text log adoc asciidoc org",
        "csv": "csv tsv",
    }.items()
    for suffix in suffixes.split()
}

_BY_NAME = {
    "build": "starlark",
    "build.bazel": "starlark",
    "cmakelists.txt": "cmake",
    "containerfile": "dockerfile",
    "dockerfile": "dockerfile",
    "gemfile": "ruby",
    "gnumakefile": "make",
    "jenkinsfile": "groovy",
    "justfile": "make",
    "makefile": "make",
    "podfile": "ruby",
    "rakefile": "ruby",
    "vagrantfile": "ruby",
    "workspace": "starlark",
    ".bashrc": "bash",
    ".profile": "bash",
    ".zshrc": "bash",
    ".vimrc": "vim",
}

_BY_INTERPRETER = {
    "bash": "bash",
    "dash": "bash",
    "fish": "fish",
    "ksh": "bash",
    "lua": "lua",
    "luajit": "lua",
    "node": "javascript",
    "nodejs": "javascript",
    "deno": "typescript",
    "perl": "perl",
    "php": "php",
    "pwsh": "powershell",
    "python": "python",
    "rscript": "r",
    "ruby": "ruby",
    "sh": "bash",
    "tclsh": "tcl",
    "zsh": "bash",
}

NOTEBOOK = "notebook"

LANGUAGES = frozenset((*_BY_SUFFIX.values(), *_BY_NAME.values(), NOTEBOOK))

_NO_GRAMMAR = frozenset({"text", "csv", NOTEBOOK})

_SHEBANG = re.compile(r"#!\s*(?:\S*/env\s+(?:-\S+\s+)*(?:\w+=\S+\s+)*)?(?:\S*/)?([A-Za-z]+)")


def language_of(path: str, text: str) -> str:
    """The language's name, or "" where nothing is known about it."""
    name = path.rpartition("/")[2].lower()
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name.startswith(("dockerfile.", "makefile.")):
        return _BY_NAME[name.partition(".")[0]]
    suffix = name.rpartition(".")[2] if "." in name[1:] else ""
    if suffix == "ipynb":
        return NOTEBOOK
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    shebang = _SHEBANG.match(text)
    return _BY_INTERPRETER.get(shebang.group(1).lower(), "") if shebang else ""


def language_named(name: str) -> str:
    """The language of this name, or of files with this suffix; "" where there is none."""
    name = name.lower().removeprefix(".")
    return name if name in LANGUAGES else _BY_SUFFIX.get(name, "")


def has_grammar(language: str) -> bool:
    """Whether files of this language are split by their syntax and not by line windows."""
    return bool(language) and language not in _NO_GRAMMAR


_THING = (
    "function|func|fn|method|class|struct|enum|interface|trait|impl|module|mod|namespace|object|constructor|destructor"
    "|macro|union|record|protocol|extension|contract|type|type_alias|service|message|rpc|procedure|subroutine|program"
    "|package|instance|data|newtype|signature|accessor|property|singleton_method|init|test|task|modifier|event|error"
    "|view|table|trigger|model|generator_function|local_function|annotation_type|companion_object|concept|actor"
    "|function_clause|def|val|value|let|mixin|library|subprogram|entity|architecture|input_object_type|object_type"
    "|interface_type|enum_type|scalar_type|union_type|directive|delegate|defn|package_body|proc"
)

_DEFINITION = re.compile(
    rf"^(?:[a-z]+_)*(?:{_THING})(?:_(?:definition|declaration|item|specifier|spec|def|decl|statement|binding|implementation"
    r"|implementation_definition))$"
    r"|^(?:create_(?:function|table|view|procedure|trigger|index|type)|defun|module|class|method|singleton_method|impl"
    r"|function|struct|message|service|enum|rpc|section|mod|trait|macro_definition|type_alias|subroutine|program"
    r"|interface|abstract_class_declaration|class_implementation|class_interface|method_definition|rule|rule_set"
    r"|mixin_statement|value_definition|instance|class_decl|data_type|newtype|signature|bind|function_def|fun_decl"
    r"|unboundMethod|table|table_array_element|Decl|FnProto|alias_declaration|trait_declaration|record_decl)$"
)

_NOT_DEFINITION = re.compile(
    r"call|^(?:import|package|module)_(?:statement|declaration)$|type_(?:parameter|argument|annotation)|^let_"
    r"|_value_|^using_|^test_(?:statement|operator)|type_specifier$|namespace_specifier|explicit_|storage_class|_interface_declaration$"
    r"|^(?:init|view|data|type|error|program|function|derived_type|interface|procedure|mixin|namespace|module|class)_statement$"
    r"|^end_|^import_|data_item|forward|_data_|select_|^formal_|object_(?:definition|declaration)$|^(?:\w+_)?property_statement"
    r"|^return_type|function_return|^tuple_|_directive_|^(?:anonymous|non_port)_|^\w+_item_|^signature$|^record_definition$"
)

# Kinds that name something in a chunk but are too small to be its scope.
_SMALL_KIND = re.compile(r"property|^val_|accessor|event|^rule$|_binding$|enum_constant")

# Nodes that only dress the one definition within: it is kept whole together with them.
WRAPPERS = frozenset(
    {
        "decorated_definition",
        "export_statement",
        "template_declaration",
        "ambient_declaration",
        "expression_statement",
        "attributed_declaration",
    }
)

# What the patterns above can't know of some grammars.
_MORE_KINDS = {
    "ada": {"subprogram_body", "package_declaration", "package_body", "package_specification"},
    "fsharp": {"function_or_value_defn", "module_defn"},
    "kotlin": {"object_declaration"},
    "ocaml": {"let_binding"},
    "pascal": {"defProc", "declClass", "declType"},
    "perl": {"subroutine_declaration_statement", "package_statement", "class_statement"},
    "powershell": {"function_statement", "class_statement"},
    "prisma": {"model_block", "enum_block"},
    "scala": {"object_definition"},
    "scss": {"mixin_statement", "function_statement"},
    "tcl": {"procedure"},
    "verilog": {"module_declaration"},
}

# Names worth finding that are neither functions nor types: they name a chunk's symbols, not its scope.
_MINOR = {
    "python": "(module (assignment left: (identifier)) @minor)",
    "javascript": """
        (program (lexical_declaration (variable_declarator) @minor))
        (program (export_statement (lexical_declaration (variable_declarator) @minor)))
        """,
    "go": "(source_file (const_declaration (const_spec) @minor)) (source_file (var_declaration (var_spec) @minor))",
    "rust": "(const_item) @minor (static_item) @minor",
    "ruby": "(assignment left: (constant)) @minor",
    "c": "(preproc_def) @minor (preproc_function_def) @minor",
    "lua": "(chunk (assignment_statement) @minor)",
    "java": "(enum_constant) @minor",
    "json": "(document (object (pair) @minor))",
    "yaml": "(document (block_node (block_mapping (block_mapping_pair) @minor)))",
    "haskell": "(declarations (bind) @definition)",
    "r": "(binary_operator rhs: (function_definition)) @definition",
}
_MINOR["typescript"] = _MINOR["tsx"] = _MINOR["javascript"]
_MINOR["cpp"] = _MINOR["cuda"] = _MINOR["objc"] = _MINOR["c"]

# In these languages a definition is a call or list whose first word says so, or what its kind does not tell.
_BY_FIRST_WORD = {
    "elixir": "(call target: (identifier) @first (#match? @first "
    '"^(def|defp|defmodule|defmacro|defmacrop|defprotocol|defimpl|defstruct|defdelegate|test|describe)$")) @definition',
    "clojure": '(list_lit . (sym_lit) @first (#match? @first "^(def|ns$|deftest|extend)")) @definition',
    "scheme": '(list . (symbol) @first (#match? @first "^(define|module)")) @definition',
    "racket": '(list . (symbol) @first (#match? @first "^(define|struct|module)")) @definition',
    "hcl": "(block) @definition",
    "html": "(element (start_tag (attribute (attribute_name) @first (quoted_attribute_value (attribute_value)))"
    ' (#eq? @first "id"))) @definition',
    "dockerfile": "(from_instruction) @definition",
}

# Kinds that define something in some places only, named by a query in `_MINOR`: in `do` a `bind` of Haskell does not.
_SOMETIMES = {"haskell": {"bind"}}


@dataclass(frozen=True, slots=True)
class DefinitionKinds:
    """Node kinds that define something in one grammar, and a query source that captures them."""

    kinds: frozenset[str]
    """Kinds of nodes that are kept whole where they fit."""
    query: str


@cache
def definition_kinds(language: str, all_kinds: tuple[str, ...]) -> DefinitionKinds:
    """What to capture as `@definition` and `@minor`, given every named node kind of the grammar."""
    if language in _BY_FIRST_WORD:
        return DefinitionKinds(frozenset(), _BY_FIRST_WORD[language])
    kinds = frozenset(kind for kind in all_kinds if _is_definition(language, kind))
    small = {kind for kind in kinds if _SMALL_KIND.search(kind)}
    told = kinds - small - _SOMETIMES.get(language, set())
    query = _captures(told, "definition") + _captures(small, "minor") + _MINOR.get(language, "")
    return DefinitionKinds(kinds, query)


def _is_definition(language: str, kind: str) -> bool:
    if kind in _MORE_KINDS.get(language, ()):
        return True
    return bool(_DEFINITION.match(kind)) and not _NOT_DEFINITION.search(kind)


def _captures(kinds: set[str] | frozenset[str], name: str) -> str:
    return f"[{' '.join(f'({kind})' for kind in sorted(kinds))}] @{name}\n" if kinds else ""
