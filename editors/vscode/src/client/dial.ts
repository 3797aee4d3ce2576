/** Gets a connection to a daemon that this extension can talk to; has one started or replaced for that. */

import { createConnection, type Socket } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import {
  createMessageConnection,
  ErrorCodes,
  NullLogger,
  ResponseError,
  SocketMessageReader,
  SocketMessageWriter,
  type MessageConnection,
} from "vscode-jsonrpc/node";
import { version } from "../../package.json";
import { run } from "./executable";
import { Problem } from "./problem";
import type { Server } from "./protocol";
import { socketPath } from "./socket";

export { version };

const protocol = 1;
// systemd may be just starting it.
const answerMs = 15_000;
const pauseMs = 20;

export const gone = (): Problem =>
  new Problem(
    "gone",
    "the daemon went away before it had answered",
    "ask again, which starts it anew; kvd logs says what happened",
  );

export interface Line {
  rpc: MessageConnection;
  server: Server;
  /** Resolved when it has ended, whoever ended it. */
  ended: Promise<void>;
  close: () => void;
}

/** Why a request got no result: what the daemon answered, or that it is gone. */
export function failure(reason: unknown): Problem {
  if (!(reason instanceof ResponseError) || reason.code === ErrorCodes.PendingResponseRejected) {
    return gone();
  }
  const data = (reason.data ?? {}) as { code?: string; message?: string; hint?: string };
  return new Problem(data.code ?? "failed", data.message ?? reason.message, data.hint ?? "");
}

/** Null where nobody listens. */
async function connect(): Promise<Socket | null> {
  const socket = createConnection(await socketPath());
  return new Promise((resolve, reject) => {
    socket.once("connect", () => {
      socket.removeAllListeners("error");
      resolve(socket);
    });
    socket.once("error", (error: NodeJS.ErrnoException) => {
      socket.destroy();
      if (error.code === "ENOENT" || error.code === "ECONNREFUSED") {
        resolve(null);
      } else {
        const reason = `can't reach the daemon: ${error.code ?? error.message}`;
        reject(new Problem("unavailable", reason, "kvd stop --now"));
      }
    });
  });
}

async function introduce(socket: Socket): Promise<Line> {
  const rpc = createMessageConnection(new SocketMessageReader(socket), new SocketMessageWriter(socket), NullLogger);
  const ended = new Promise<void>((resolve) => {
    socket.once("close", () => {
      rpc.dispose();
      resolve();
    });
  });
  // The end that follows says it; without a listener an error would end the process.
  socket.on("error", () => undefined);
  rpc.onError(() => socket.destroy());
  rpc.listen();
  let timer: NodeJS.Timeout | undefined;
  const silence = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new Problem("unavailable", "the daemon does not answer", "kvd stop --now"));
    }, answerMs);
  });
  const close = (): void => {
    socket.destroy();
  };
  try {
    const server = await Promise.race([rpc.sendRequest<Server>("initialize", { version, client: "vscode" }), silence]);
    return { rpc, server, ended, close };
  } catch (reason) {
    close();
    throw reason instanceof Problem ? reason : failure(reason);
  } finally {
    clearTimeout(timer);
  }
}

/** Null where nobody listens. A daemon that ends between taking the connection and answering makes way for another. */
async function attempt(): Promise<Line | null> {
  const deadline = Date.now() + answerMs;
  for (;;) {
    const socket = await connect();
    if (!socket) {
      return null;
    }
    try {
      return await introduce(socket);
    } catch (reason) {
      if (!(reason instanceof Problem) || reason.code !== "gone" || Date.now() > deadline) {
        throw reason;
      }
      await pause(pauseMs);
    }
  }
}

/** @param executable the program that starts a daemon where none runs, or replaces one of another version that is idle */
export async function dial(executable: string): Promise<Line> {
  let line = await attempt();
  if (!line || line.server.stopping || line.server.version !== version) {
    const needed = !line || line.server.stopping;
    line?.close();
    try {
      await run(executable, "start");
    } catch (reason) {
      // One of another version that is at work can be talked to all the same.
      if (needed) {
        throw reason;
      }
    }
    line = await attempt();
  }
  if (!line) {
    throw new Problem("unavailable", "the daemon was started, and does not listen", "kvd logs");
  }
  if (line.server.protocol !== protocol) {
    line.close();
    const message = `the daemon is kvd ${line.server.version}, which this extension (of ${version}) can't talk to`;
    throw new Problem("unavailable", message, "update the older one, then kvd stop");
  }
  return line;
}
