"""The commands as people run them, against a real daemon with the scripted engine."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvd import paths
from kvd.errors import CancelledError
from kvd.rpc.client import Client
from kvd_cli import main
from tests.conftest import FakeDaemon, Kvd, poll, use_model

EXPIRED = "when is the session expired"


def test_version_is_printed_at_once(kvd: Kvd) -> None:
    assert kvd.ok("--version") == "kvd 0.1.0\n"


def test_help_names_every_command(kvd: Kvd) -> None:
    text = kvd.ok()
    assert kvd.ok("--help") == text
    for name in ("setup", "index", "search", "ask", "status", "doctor", "metrics", "start", "stop", "logs", "gc"):
        assert re.search(rf"^ +{name} ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["ask"], "Missing argument 'QUESTION'"),
        (["ask", ""], "the question is empty"),
        (["search", " \t"], "the query is empty"),
        (["ask", "x" * 20_001], "the question has 20,001 characters"),
        (["search", "x", "--top-k", "1e3"], "Invalid value for '--top-k': '1e3' is not a whole number"),
        (["search", "x", "--path", ""], "paths must be a list of texts of 1 to"),
        (["search", "x", "--lang", ""], "languages must be a list of texts of 1 to"),
        (["--", "search"], "Missing argument 'QUERY'"),
        (["search", "x", "--nonsense"], "No such option"),
        (["ask", "x", "--budget", "0"], "Invalid value for '--budget': 0 is not in the range 64<="),
        (["ask", "x", "--max-tokens", "0"], "Invalid value for '--max-tokens': 0 is not in the range 1<="),
    ],
)
def test_wrong_usage(kvd: Kvd, arguments: list[str], message: str) -> None:
    done = kvd.run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("kvd: ")
    assert message in first
    assert second.startswith("hint: kvd ")


def test_usage_errors_as_json(kvd: Kvd) -> None:
    done = kvd.run("search", "--json", "x", "--top-k", "0")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    message = "Invalid value for '--top-k': 0 is not in the range 1<=x<=200"
    assert error == {"code": "usage", "message": message, "hint": "kvd search --help"}


@pytest.mark.parametrize(
    ("typed", "right"),
    [
        (["--json", "status"], "kvd status --json"),
        (["--repo", "a b", "search", "x"], "kvd search x --repo 'a b'"),
        (["--json", "search", "--", "--x"], "kvd search --json -- --x"),
        (["--json"], "kvd --help"),
    ],
)
def test_options_that_come_too_early(kvd: Kvd, typed: list[str], right: str) -> None:
    done = kvd.run(*typed)
    assert done.returncode == 2
    hint = json.loads(done.stdout)["error"]["hint"] if "--json" in typed else done.stderr.splitlines()[1]
    assert hint.removeprefix("hint: ") == right


def test_what_follows_two_dashes_is_no_option(kvd: Kvd, isolated_home: Path) -> None:
    missing = str(isolated_home / "missing")
    done = kvd.run("search", "--repo", missing, "--", "--json")
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("kvd: there is no ")
    done = kvd.run("--", "search", "--repo", missing, "--json", "x")
    assert json.loads(done.stdout)["error"]["code"] == "repository"


def test_exit_codes_of_repositories(kvd: Kvd, isolated_home: Path) -> None:
    done = kvd.run("index", str(isolated_home / "missing"))
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("kvd: there is no ")
    assert kvd.json("search", "x", "--repo", "/dev/null")["error"]["code"] == "repository"
    gone = isolated_home / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m kvd_cli.main index"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60.0, check=False)
    assert done.returncode == 5
    assert "the working folder does not exist any more" in done.stderr


def test_index_sums_up(kvd: Kvd, repository: Path) -> None:
    first = kvd.ok("index", str(repository))
    assert re.match(rf"indexed {repository}: 3 files, \d+ chunks \(3 added\), in \d+\.\d s\n$", first)
    again = kvd.json("index", str(repository))
    assert (again["files"], again["unchanged"], again["added"]) == (3, 3, 0)
    assert kvd.ok("index", str(repository), "--background").startswith(f"indexing {repository} in the background")


def test_a_first_index_is_visible(kvd: Kvd, repository: Path) -> None:
    first = kvd.run("search", "session", "--repo", str(repository))
    assert first.stderr == f"kvd: no index of {repository} yet: making one\n"
    assert kvd.run("search", "session", "--repo", str(repository)).stderr == ""


def test_a_damaged_index_is_made_anew_visibly(kvd: Kvd, repository: Path) -> None:
    paths.config_file().parent.mkdir(parents=True)
    # Who watches may be the first to notice, and tells only the log.
    paths.config_file().write_text("watch = false\n")
    kvd.ok("index", str(repository))
    paths.index_file(repository).write_bytes(b"garbage" * 1_000)
    done = kvd.run("search", "session", "--repo", str(repository))
    assert done.returncode == 0
    assert re.fullmatch(r"kvd: the index is made anew: damaged file: .+\n", done.stderr)
    assert re.search(r"WARNING kvd\.service\.indexer: index \S+\.db made anew: damaged", paths.log_file().read_text())


def test_search_lists_places(kvd: Kvd, repository: Path) -> None:
    lines = kvd.ok("search", "paint rectangle", cwd=repository / "src").splitlines()
    assert lines[0] == "src/paint.js:1-4  paintRectangle"
    assert kvd.ok("search", "xyzzy plugh", "--repo", str(repository)) == "nothing found\n"
    found = kvd.json("search", "paint rectangle", "--repo", str(repository), "--top-k", "1")
    assert [source["path"] for source in found["sources"]] == ["src/paint.js"]


def test_search_in_a_part_of_the_repository(kvd: Kvd, repository: Path) -> None:
    def found(*options: str) -> list[str]:
        result = kvd.json("search", "session that expires, something that paints", "--repo", str(repository), *options)
        return sorted({source["path"] for source in result["sources"]})

    assert found() == ["README.md", "src/paint.js", "src/session.py"]
    assert found("--path", "src/**", "--path", "!*.js") == ["src/session.py"]
    assert found("--lang", "js", "--lang", "Markdown") == ["README.md", "src/paint.js"]
    done = kvd.run("search", "session", "--repo", str(repository), "--path", "docs/**")
    said = "kvd: no indexed file matches docs/**; there is src/, README.md\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing found\n", said)
    done = kvd.run("ask", "x", "--repo", str(repository), "--lang", "pyhton")
    assert done.returncode == 2
    assert done.stderr.startswith("kvd: there is no language 'pyhton'; did you mean python")
    assert done.stderr.splitlines()[1] == "hint: kvd search QUERY --lang python"


def test_ask_streams_then_lists_sources(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    kvd.ok("index", str(repository))
    done = kvd.run("ask", f"say {EXPIRED} [2]", "--repo", str(repository))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"{EXPIRED} [2]"
    assert lines[1:3] == ["", "Sources:"]
    # The scripted engine's second chunk is the best one.
    assert re.match(r"  \* src/session\.py:\d+-\d+  Session", lines[3])
    assert lines[4].startswith("    ")
    assert re.match(
        r"100 tokens of code recalled \(90 from memory, 10 computed\) · first word after \d+\.\d s", lines[-1]
    )
    assert "\x1b" not in done.stdout


def test_ask_as_json(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    done = kvd.run("ask", f"say {EXPIRED}", "--repo", str(repository), "--json", "--no-reuse", "--top-k", "1")
    result = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert result["answer"] == EXPIRED
    assert len(result["sources"]) == 1


def test_an_answer_cannot_drive_the_terminal(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    evil = repository / "src" / "ex\x1b[31mpired\x07.py"
    evil.write_text((repository / "src" / "session.py").read_text())
    said = "session is_expired expires_at lifetime"
    done = kvd.run("ask", f"say {said}\x1b]0;t\x07\x1b[2J\x9b1m\u202e?\r", "--repo", str(repository))
    assert done.returncode == 0
    assert done.stdout.startswith(f"{said}?\n")
    assert "src/expired.py:" in done.stdout
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", done.stdout)


def test_a_repository_cannot_drive_the_terminal(kvd: Kvd, fake_daemon: FakeDaemon, isolated_home: Path) -> None:
    root = isolated_home / "r\x1b]0;owned\x07\u202e"
    root.mkdir()
    name = "a\x1b[2J\nb\r\u2066[bold]\u061c.py"
    (root / name).write_text("def is_expired(session):\n    return session.expires_at < now()\n")
    ask = ("ask", f"say {EXPIRED} \x1b[31m", "--repo", str(root))
    for arguments in (("index", str(root)), ("search", EXPIRED, "--repo", str(root)), ask, ("status",)):
        shown = on_terminal(kvd.command(*arguments))
        # What kvd itself colours and the terminal's own line ends.
        left = re.sub(r"\x1b\[(?:\d+m|\?25[lh]|\d*[KAGJ])|\r", "", shown)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u202e\u2066]", left), repr(left)
        assert "owned" not in left
    found = kvd.run("search", EXPIRED, "--repo", str(root), "--json")
    assert found.stdout.isascii()
    assert found.stdout.count("\n") == 1
    assert json.loads(found.stdout)["sources"][0]["path"] == name


def test_without_a_model(kvd: Kvd, repository: Path, isolated_home: Path) -> None:
    use_model("gone", isolated_home / "gone.gguf")
    done = kvd.run("ask", EXPIRED, "--repo", str(repository))
    assert done.returncode == 4
    assert done.stderr.endswith("hint: kvd setup\n")
    assert kvd.json("ask", EXPIRED, "--repo", str(repository))["error"]["code"] == "no-model"


def test_nothing_relevant_is_an_answer(kvd: Kvd) -> None:
    done = kvd.run("ask", "where is the session expired")
    assert done.returncode == 0
    assert done.stdout == "Nothing in this repository seems relevant to the question.\n"


def test_the_engines_death(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    done = kvd.run("ask", f"die SIGILL {EXPIRED}", "--repo", str(repository))
    assert done.returncode == 3
    # What had come of the answer stays, on a line of its own.
    assert done.stdout == "It is in [1].\n"
    error, hint = done.stderr.splitlines()[-2:]
    assert error == "kvd: the engine stopped (signal SIGILL)"
    assert "CMAKE_ARGS=-DGGML_NATIVE=OFF" in hint
    assert kvd.json("ask", f"say {EXPIRED}", "--repo", str(repository))["answer"] == EXPIRED


def start_slow_ask(kvd: Kvd, repository: Path) -> subprocess.Popen[str]:
    """An ask that streams without end, and has begun to."""
    process = subprocess.Popen(
        kvd.command("ask", f"slow {EXPIRED}", "--repo", str(repository)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.read(4) == "word"
    return process


def engine_is(state: str) -> bool:
    client = Client.running()
    assert client is not None
    with client:
        return bool(client.call("status", {}, timeout=10.0)["engine"]["state"] == state)


SWALLOWED = """
import signal, sys
sys.argv = ["kvd", *sys.argv[1:]]

class Finder:
    asked = False

    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and not self.asked:
            Finder.asked = True
            Interrupted()

class Interrupted:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
        print("went on")

sys.meta_path.insert(0, Finder())
from kvd_cli.main import main
sys.exit(main())
"""


def run_program(program: str, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["search", "--", "--json"]])
def test_ctrl_c_before_the_command_has_begun(isolated_home: Path, arguments: list[str]) -> None:
    program = """
import signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "kvd.errors":
            signal.raise_signal(signal.SIGINT)

sys.argv[0] = "/usr/bin/kvd"
sys.meta_path.insert(0, Finder())
from kvd_cli.main import main
print("went on")
"""
    told = json.dumps({"error": CancelledError("interrupted").to_json()}) + "\n"
    as_json = arguments == ["status", "--json"]
    assert run_program(program, *arguments) == (130, *((told, "") if as_json else ("", "kvd: interrupted\n")))


def test_ctrl_c_that_waits_for_a_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []

    @contextmanager
    def raised() -> Iterator[None]:
        waits.append("raised")
        yield

    monkeypatch.setattr(main, "interrupts_raised", raised)
    for arguments in (["bench", "--help"], ["--", "bench", "--help"], ["config", "--help"]):
        main._run(arguments)
    assert waits == ["raised", "raised"]


def test_ctrl_c_that_an_import_swallows_ends_the_command_all_the_same(isolated_home: Path) -> None:
    code, out, said = run_program(SWALLOWED.format(module="typer"), "status", "--json")
    assert (code, json.loads(out), said) == (130, {"error": CancelledError("interrupted").to_json()}, "")
    ended = run_program(SWALLOWED.format(module="kvd.rpc.client"), "ask", "x")
    assert ended == (130, "", "kvd: interrupted\n")


def test_ctrl_c_that_is_swallowed_while_there_is_something_to_tidy_up(isolated_home: Path) -> None:
    program = """
import signal
from kvd_cli.interrupts import interrupts_raised

class Interrupted:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

with interrupts_raised():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("tidied up", flush=True)
    Interrupted()
    print("went on")
"""
    assert run_program(program) == (130, "tidied up\n", "kvd: interrupted\n")


def test_ctrl_c_cancels(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    process = start_slow_ask(kvd, repository)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20.0)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "kvd: interrupted"
    assert "Traceback" not in said
    poll(lambda: engine_is("ready"))


def test_a_closed_pipe_ends_it_quietly(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    process = start_slow_ask(kvd, repository)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(20.0) == 0
    assert "Error" not in process.stderr.read()
    process.stderr.close()
    poll(lambda: engine_is("ready"))


def test_a_killed_client_stops_the_answer(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    process = start_slow_ask(kvd, repository)
    process.kill()
    process.communicate(timeout=20.0)
    poll(lambda: engine_is("ready"))


def on_terminal(command: list[str], seconds: float = 30.0) -> str:
    """What `command` shows on a terminal of its own."""
    master, slave = pty.openpty()
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    shown = b""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not select.select([master], [], [], 0.1)[0]:
            continue
        try:
            data = os.read(master, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
    os.close(master)
    assert process.wait(10.0) == 0
    return shown.decode()


def test_a_terminal_sees_progress_while_it_waits(kvd: Kvd, repository: Path, isolated_home: Path) -> None:
    model = isolated_home / "slow.gguf"
    model.write_bytes(b"GGUF")
    use_model("slow-to-load", model)
    daemon = FakeDaemon()
    try:
        shown = on_terminal(kvd.command("ask", f"say {EXPIRED}", "--repo", str(repository)))
    finally:
        daemon.end()
    assert "loading the model slow-to-load" in shown
    assert f"{EXPIRED}\r\n\r\nSources:" in shown
    # The statistics are dim.
    assert re.search(r"\x1b\[2m100 tokens", shown)


def test_what_does_not_fit_the_gpu_is_told(kvd: Kvd, repository: Path, isolated_home: Path) -> None:
    model = isolated_home / "large.gguf"
    model.write_bytes(b"GGUF")
    use_model("aborts-above 19", model)
    daemon = FakeDaemon()
    try:
        done = kvd.run("ask", f"say {EXPIRED}", "--repo", str(repository))
        status = kvd.ok("status").splitlines()
    finally:
        daemon.end()
    assert done.returncode == 0
    death = "29 of 29 layers on the GPU: the engine stopped (signal SIGABRT)"
    assert f"kvd: {death}; now 19 of 29 layers on the GPU" in done.stderr.splitlines()
    assert f"device   19 of 29 layers on the GPU ({death})" in status


def test_status_and_logs(kvd: Kvd, fake_daemon: FakeDaemon, repository: Path) -> None:
    kvd.ok("ask", f"store {EXPIRED}", "--repo", str(repository))
    # Blocks are written behind the answer.
    poll(lambda: "1 block, 1 dropped" in kvd.ok("status"))
    lines = {line.split()[0]: line for line in kvd.ok("status").splitlines()}
    assert re.match(r"daemon   running, kvd 0\.1\.0, pid \d+, up \d+ s$", lines["daemon"])
    assert lines["model"] == "model    fake"
    assert lines["engine"] == "engine   ready, reuse on"
    assert lines["pool"] == "pool     10 bytes of 1 kB (1%), 1 block, hit rate 90%"
    assert re.match(r"store    \d+ kB of 8\.0 GB, 1 block, 1 dropped as damaged$", lines["store"])
    # By who watches, or not yet.
    state = r"(, being updated)?, (watched|not watched \(about to be watched\))"
    assert re.match(rf"index    {repository}: 3 files, \d+ chunks, \d+ kB{state}$", lines["index"])
    assert kvd.run("search", "x", "--repo", "/dev/null").returncode == 5
    assert "ask ok in" in kvd.ok("logs")
    assert "search failed (repository) in" in kvd.ok("logs")
    assert len(kvd.ok("logs", "-n", "2").splitlines()) == 2
    assert kvd.ok("gc").startswith("freed ")


def test_logs_follow(kvd: Kvd, fake_daemon: FakeDaemon) -> None:
    process = subprocess.Popen(
        kvd.command("logs", "-n", "0", "--follow"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None

    def something_came() -> bool:
        kvd.ok("status")
        assert process.stdout is not None
        return bool(select.select([process.stdout], [], [], 0.1)[0])

    poll(something_came, 30.0)
    assert "kvd.daemon.server: " in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20.0)
    assert process.returncode == 130


def test_commands_import_little(kvd: Kvd, repository: Path) -> None:
    """What makes a command start late, or needs a compiler, stays out of it."""
    code = (
        "import sys; sys.argv = ['kvd', 'search', 'session', '--repo', sys.argv[1]]\n"
        "from kvd_cli.main import main; status = main()\n"
        "heavy = {'torch', 'llama_cpp', 'numpy', 'apsw', 'asyncio', 'rich', 'pydantic', 'tree_sitter', 'kvd.models',"
        " 'prometheus_client'}\n"
        "print(status, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(repository)], capture_output=True, text=True, timeout=60.0, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"
