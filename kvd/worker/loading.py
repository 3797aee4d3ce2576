"""Loading a model: where it goes, whether its KV may be reused, and with which tiers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import torch

from kvd.engine.header import ModelSize, read_size
from kvd.engine.llama import LlamaEngine
from kvd.engine.memory import gpu_memory
from kvd.errors import ModelError, UsageError
from kvd.kv.codec import DEFAULT
from kvd.kv.pager import Pager
from kvd.kv.policies import Policy, policy_named
from kvd.kv.pool import HotPool, free_memory, pool_bytes_for
from kvd.kv.store import BlockStore
from kvd.types import KVShape
from kvd.worker.answerer import Answerer
from kvd.worker.batcher import Batcher
from kvd.worker.decoding import LIVE, PREFIX, SPARE, WORK, decode_run, sequences_for
from kvd.worker.gate import Gate, Verdict, gate_key, verdict_from_json
from kvd.worker.placement import RESERVE, Gpus, Placement, gigabytes, load_stepwise, placement_from_json, plan
from kvd.worker.probe import Movable, NotMovableError, probe
from kvd.worker.prompt import PromptBuilder
from kvd.worker.protocol import Message
from kvd.worker.reuse import Reuse, fingerprint, token_key

MAX_RECOMPUTE = 64

Tell = Callable[[str, Message], None]
"""Gets the name and the data of an event."""


_NO_GPU = Placement(0, 0, "host", "llama.cpp sees no GPU")


def planned(path: Path, n_ctx: int, pool_bytes: int | None, gpu_layers: int) -> Placement:
    """What of the model at `path` should go on the GPU as it is now, with settings as in `Settings`.

    `pool_bytes` is None without a pool. Raises `ModelError` or `UsageError`.
    """
    free = gpu_memory()
    if not free:
        return _NO_GPU
    model = read_size(path)
    pool = 0 if pool_bytes is None else pool_bytes_for(shape_of(model), n_ctx, pool_bytes)
    return plan(Gpus(sum(free), len(free), _no_pool(len(free))), model, n_ctx, pool, gpu_layers)


def shape_of(model: ModelSize) -> KVShape:
    """The shape of its cells, as far as the file's header tells."""
    return KVShape(len(model.blocks), model.kv_bytes_per_token // (4 * len(model.blocks)))


def _pool_wish(params: Message) -> int | None:
    return int(params["pool_bytes"]) if params["reuse"] else None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready for questions; `pool` is None where its KV is not reused. `facts` is the answer to `load`."""

    engine: LlamaEngine
    answerer: Answerer
    pool: HotPool | None
    facts: Message


class Loader:
    """Loads one model as the params of a `load` request say; events of it go to `tell`."""

    def __init__(self, params: Message, tell: Tell) -> None:
        self._params, self._tell = params, tell
        self._path = Path(params["model_path"])
        self._pool: HotPool | None = None
        self._placement = _NO_GPU

    def load(self) -> Loaded:
        """Raises `ModelError` or `UsageError`; then nothing is left of it."""
        started = perf_counter()
        loaded = load_stepwise(self._first_placement(), self._load, self._announce)
        if self._pool is None:
            # Of a pool on the GPU that turned out to be of no use torch would keep the memory.
            torch.cuda.empty_cache()
        return replace(loaded, facts={**loaded.facts, "load_ms": round((perf_counter() - started) * 1000, 1)})

    def _first_placement(self) -> Placement:
        """What the daemon says, after a child that died of more; else what should fit."""
        params = self._params
        if params.get("placement"):
            return placement_from_json(params["placement"])
        return planned(self._path, int(params["n_ctx"]), _pool_wish(params), int(params["gpu_layers"]))

    def _announce(self, placement: Placement, failure: str = "") -> None:
        """Tell what is tried now, and what to try should it be this process's end."""
        self._placement, following = placement, placement.fewer_layers()
        self._tell_placement(placement, following, failure)

    def _tell_placement(self, placement: Placement, following: Placement | None, failure: str = "") -> None:
        data = {"placement": placement.to_json(), "next": following and following.to_json(), "failure": failure}
        self._tell("placement", data)

    def _load(self, placement: Placement) -> Loaded:
        params, self._pool = self._params, None
        sequences = sequences_for(int(params["parallel"]))
        engine = LlamaEngine(self._path, int(params["n_ctx"]), int(params["threads"]), placement.layers, sequences)
        try:
            return self._set_up(engine)
        except BaseException:
            engine.close()
            raise

    def _set_up(self, engine: LlamaEngine) -> Loaded:
        params = self._params
        if not engine.has_decoder:
            raise ModelError(f"{self._path} is not a text model", hint="kvd setup")
        torch.set_num_threads(engine.threads)
        prompts = PromptBuilder(engine, bool(params["short_headers"]))
        decode_run(engine, prompts.prefix, 0, PREFIX, _go_on)
        batcher = Batcher(engine)
        reuse, verdict = self._judged(engine, prompts, batcher)
        if reuse is None:
            self._pool, self._placement = None, replace(self._placement, pool="none")
        chosen = int(params["recompute"])
        recompute = min(chosen, MAX_RECOMPUTE) if chosen >= 0 else verdict.recompute
        answerer = Answerer(
            engine,
            prompts,
            reuse,
            recompute,
            verdict.reuse != "off",
            int(params["resident_prompts"]),
            int(params["parallel"]),
            batcher,
            token_key(str(params["model_sha256"]), prompts),
        )
        facts = {
            "model": params["model_name"],
            "n_ctx": engine.n_ctx,
            "reuse": "on" if reuse else verdict.reuse,
            "reuse_reason": verdict.reason,
            "gate": verdict.to_json() if verdict.key else None,
            "kv_bytes_per_token": reuse.shape.bytes_per_token if reuse else 0,
            "gpu": "yes" if self._placement.layers else "",
            "placement": self._placement.to_json(),
            "recompute": recompute,
        }
        return Loaded(engine, answerer, self._pool, facts)

    def _judged(self, engine: LlamaEngine, prompts: PromptBuilder, batcher: Batcher) -> tuple[Reuse | None, Verdict]:
        """Reuse for this model if the gate lets it, and the gate's verdict: the known one where it still holds."""
        params = self._params
        if not params["reuse"]:
            return None, Verdict("", "off", "switched off in the settings")
        key = gate_key(str(params["model_sha256"]), prompts, DEFAULT.id)
        known = verdict_from_json(params["gate"]) if params.get("gate") else None
        if known is not None and (known.key != key or not known.possible):
            known = None
        gate = Gate(engine, prompts, _go_on)
        try:
            movable = probe(engine, (LIVE, WORK, SPARE))
        except NotMovableError as error:
            return None, Verdict(key, gate.prefix_verdict(), str(error))
        if known is not None and known.reuse != "on":
            return None, known
        reuse = self._make_reuse(engine, prompts, movable, batcher)
        if known is None:
            known = self._checked(gate, reuse, key)
        if known.reuse != "on":
            return None, known
        # What the gate looked up was no question's.
        reuse.pager.counts.clear()
        return reuse, known

    def _checked(self, gate: Gate, reuse: Reuse, key: str) -> Verdict:
        try:
            return gate.check(reuse, key, lambda progress: self._tell("stage", progress.to_json()))
        except ModelError as error:
            # A context too small for the check, say. Without a key nobody keeps this.
            return Verdict("", gate.prefix_verdict(), f"the model could not be checked: {error.message}")

    def _make_reuse(self, engine: LlamaEngine, prompts: PromptBuilder, movable: Movable, batcher: Batcher) -> Reuse:
        params = self._params
        self._pool = self._make_pool(movable.shape, engine.n_ctx)
        store = BlockStore(Path(params["store_path"]), readonly=True)
        pager = Pager(self._pool, store, movable.shape, fingerprint(str(params["model_sha256"]), movable, prompts))
        # llama.cpp copies from these states to its cells. The pool itself is read by the CPU: pinning gains it nothing.
        pinned = self._placement.layers > 0 and torch.cuda.is_available()
        return Reuse(engine, prompts, movable, pager, pinned, batcher)

    def _make_pool(self, shape: KVShape, n_ctx: int) -> HotPool:
        """On the GPU if the placement says so and what llama.cpp has left there suffices, else in host memory."""
        capacity = pool_bytes_for(shape, n_ctx, int(self._params["pool_bytes"]))
        placement, policy = self._placement, policy_named(str(self._params["eviction"]))
        if placement.pool == "gpu":
            self._tell_placement(placement, placement.smaller())
            try:
                return _gpu_pool(shape, capacity, policy)
            except RuntimeError as error:
                # Mostly torch's OutOfMemoryError. It goes on for many lines.
                failure = f"the hot pool does not fit the GPU: {str(error).splitlines()[0]}"
            self._announce(replace(placement, pool="host", why=failure), failure)
        return _host_pool(shape, capacity, policy)


def _go_on() -> None:
    """Nobody cancels what belongs to loading."""


def _no_pool(gpus: int) -> str:
    """Why torch can't have a pool on the GPU, or ""."""
    if not torch.cuda.is_available():
        return "torch can't use it"
    return "" if gpus == 1 else "several GPUs share the layers"


def _gpu_pool(shape: KVShape, capacity: int, policy: Policy) -> HotPool:
    """Raises `RuntimeError` where it does not fit: what llama.cpp takes while it computes must stay free."""
    free, _ = torch.cuda.mem_get_info()
    if free - capacity < RESERVE // 2:
        raise RuntimeError(f"{gigabytes(free)} of its memory are free, the pool would take {gigabytes(capacity)}")
    return HotPool(shape, capacity, torch.device("cuda"), policy)


def _host_pool(shape: KVShape, capacity: int, policy: Policy) -> HotPool:
    """Raises `UsageError` where the system refuses so much memory."""
    try:
        return HotPool(shape, capacity, policy=policy)
    except RuntimeError as error:
        # torch only says where in its own source it failed.
        raise UsageError(
            f"pool_bytes = {capacity} can't be had: the system refuses so much memory",
            hint=f"set pool_bytes to at most {free_memory()} in config.toml, or a smaller n_ctx",
        ) from error
