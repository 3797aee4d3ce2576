/** Requests to the daemon, on one connection that is made when needed and given up when it was not needed for a while. */

import { CancellationTokenSource, ProgressType } from "vscode-jsonrpc/node";
import { dial, failure, gone, version, type Line } from "./dial";
import { cancelled, Problem } from "./problem";
import type { Methods, Progress } from "./protocol";

// A daemon with a client never ends by itself.
const idleMs = 60_000;
const progressType = new ProgressType<Progress>();

export interface Handling {
  /** Gets what is told before the answer, in order. */
  progress?: (value: Progress) => void;
  /** Cancels the request. */
  signal?: AbortSignal;
  /** Whether it neither keeps the connection nor shows as activity. */
  quiet?: boolean;
}

export interface Surroundings {
  /** The program `kvd`, as it is set now. */
  executable: () => string;
  /** Gets what is worth telling and no failure, each line once. */
  warn: (line: string) => void;
}

export class Daemon {
  #line: Promise<Line> | null = null;
  #open: Line | null = null;
  #busy = 0;
  #lastToken = 0;
  #idle: NodeJS.Timeout | undefined;
  readonly #warned = new Set<string>();
  readonly #stop = new AbortController();

  constructor(private readonly surroundings: Surroundings) {}

  /** Whether there is a connection, so that to ask something costs next to nothing. */
  get connected(): boolean {
    return this.#open !== null;
  }

  /** How many requests are at work, the quiet ones aside. */
  get busy(): number {
    return this.#busy;
  }

  /**
   * Sends a request, on a new connection where there is none, to a new daemon where none runs.
   *
   * Rejects with a `Problem`, whatever it was; with `cancelled` as soon as the signal says so.
   */
  async request<M extends keyof Methods>(
    method: M,
    params: Methods[M][0],
    handling: Handling = {},
  ): Promise<Methods[M][1]> {
    if (!handling.quiet) {
      this.#busy += 1;
      clearTimeout(this.#idle);
    }
    try {
      return await this.#send(method, params, handling);
    } finally {
      if (!handling.quiet) {
        this.#busy -= 1;
        this.#closeLater();
      }
    }
  }

  /** Cancels everything and gives the connection up; the next request makes a new one. */
  close(): void {
    clearTimeout(this.#idle);
    this.#open?.close();
    this.#forget(this.#open);
  }

  /** `close`, for good. */
  dispose(): void {
    this.#stop.abort();
    this.close();
  }

  async #send<M extends keyof Methods>(
    method: M,
    params: Methods[M][0],
    { progress, signal }: Handling,
  ): Promise<Methods[M][1]> {
    const stop = signal ? AbortSignal.any([signal, this.#stop.signal]) : this.#stop.signal;
    const source = new CancellationTokenSource();
    let abort: () => void = () => undefined;
    const aborted = new Promise<never>((_, reject) => {
      abort = () => {
        source.cancel();
        reject(cancelled());
      };
      stop.addEventListener("abort", abort);
    });
    if (stop.aborted) {
      abort();
    }
    try {
      return await Promise.race([aborted, this.#answer(method, params, progress, source)]);
    } finally {
      stop.removeEventListener("abort", abort);
    }
  }

  /** A connection that was there may be to a daemon that is just ending: what it said nothing to is sent anew, once. */
  async #answer<M extends keyof Methods>(
    method: M,
    params: Methods[M][0],
    progress: Handling["progress"],
    source: CancellationTokenSource,
  ): Promise<Methods[M][1]> {
    const old = this.#open;
    let begun = false;
    const begins = (value: Progress): void => {
      begun = true;
      progress?.(value);
    };
    try {
      return await this.#once(method, params, progress && begins, source);
    } catch (reason) {
      const again = reason instanceof Problem && reason.code === "gone" && old !== null && !begun;
      if (!again || this.#stop.signal.aborted) {
        throw reason;
      }
      this.#forget(old);
      return this.#once(method, params, progress, source);
    }
  }

  async #once<M extends keyof Methods>(
    method: M,
    params: Methods[M][0],
    progress: Handling["progress"],
    source: CancellationTokenSource,
  ): Promise<Methods[M][1]> {
    const { rpc } = await this.#connection();
    if (source.token.isCancellationRequested) {
      throw cancelled();
    }
    this.#lastToken += 1;
    const progressToken = this.#lastToken;
    const listening = progress && rpc.onProgress(progressType, progressToken, progress);
    try {
      const sent = progress ? { ...params, progressToken } : params;
      return await rpc.sendRequest<Methods[M][1]>(method, sent, source.token);
    } catch (reason) {
      const problem = failure(reason);
      // Who cancels it here has been told already.
      throw problem.code === "cancelled" ? new Problem("stopped", "the daemon cancelled it", "ask again") : problem;
    } finally {
      listening?.dispose();
    }
  }

  async #connection(): Promise<Line> {
    this.#line ??= this.#dial();
    return this.#line;
  }

  async #dial(): Promise<Line> {
    try {
      const line = await dial(this.surroundings.executable());
      if (this.#stop.signal.aborted) {
        line.close();
        throw gone();
      }
      this.#open = line;
      void line.ended.then(() => {
        this.#forget(line);
      });
      this.#tellVersion(line.server.version);
      return line;
    } catch (reason) {
      this.#line = null;
      throw reason;
    }
  }

  #forget(line: Line | null): void {
    if (line && line === this.#open) {
      this.#open = null;
      this.#line = null;
    }
  }

  #tellVersion(found: string): void {
    if (found !== version && !this.#warned.has(found)) {
      this.#warned.add(found);
      const cure = "(hint: update the older one, then kvd stop)";
      this.surroundings.warn(`the daemon is kvd ${found}, this extension is of ${version} ${cure}`);
    }
  }

  #closeLater(): void {
    clearTimeout(this.#idle);
    if (this.#busy === 0 && !this.#stop.signal.aborted) {
      this.#idle = setTimeout(() => {
        this.close();
      }, idleMs);
      this.#idle.unref();
    }
  }
}
