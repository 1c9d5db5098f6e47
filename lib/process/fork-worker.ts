/** Starts a worker as a process of node:cluster, which lets all of them accept from the same addresses. */
import type { ChildProcess } from 'node:child_process';
import cluster, { type Worker } from 'node:cluster';
import { systemClock } from '../support/clock.ts';
import { type FromWorker, isWorkerMessage } from './worker-messages.ts';
import type { WorkerEvents, WorkerProcess } from './workers.ts';

const READ_LOOK_MS = 5;

export function forkWorker(events: WorkerEvents): WorkerProcess {
  const worker = cluster.fork();
  const { process } = worker;
  const closeUndelivered = watchHandovers(worker);
  let over = false;
  const end = (how: string) => {
    if (over) return;
    over = true;
    closeUndelivered();
    events.ended(how);
  };
  worker.on('message', (message: unknown) => {
    if (isWorkerMessage(message)) events.message(message as FromWorker);
  });
  process.once('exit', (code, signal) => {
    // What it said last can be read after its end.
    whenRead(process, () => {
      // The cluster waits for the word that a connection was taken, from a process that says nothing any more, before
      // it lets go of the worker (setupChannel in lib/internal/child_process.js).
      if (!disconnected) process.emit('disconnect');
      end(signal ?? `exit ${code}`);
    });
  });
  let disconnected = false;
  process.once('disconnect', () => {
    disconnected = true;
  });
  worker.on('error', (error) => {
    // Of a process that was started this is a message that could not be sent, and its end follows.
    if (process.pid === undefined) end(`it could not be started: ${error.message}`);
  });
  return {
    id: worker.id,
    pid: process.pid ?? 0,
    send: (message) => {
      if (worker.isConnected()) process.send(message, undefined, {}, () => undefined);
    },
    kill: () => void process.kill('SIGKILL'),
  };
}

/** Calls back when everything that a process that has ended had said is read. */
function whenRead(process: ChildProcess, then: () => void): void {
  if (process.connected) systemClock.after(READ_LOOK_MS, () => whenRead(process, then));
  // Messages that were read are still to be told in this turn.
  else setImmediate(then);
}

interface Handle {
  close(): void;
}

/** Which worker each connection was handed to last. */
const receivers = new WeakMap<object, Worker>();

/**
 * The cluster hands each worker one connection per address at a time and keeps its own end until the worker has taken
 * it. When the worker dies before that, the cluster forgets about the connection, and its client would wait for ever
 * (lib/internal/cluster/round_robin_handle.js). Returns what closes those connections; closing twice does no harm.
 */
function watchHandovers(worker: Worker): () => void {
  const latest = new Map<unknown, Handle>();
  const { process } = worker;
  const send = process.send.bind(process) as (...args: unknown[]) => boolean;
  process.send = (...args: unknown[]) => {
    const [message, handle] = args;
    if (isHandover(message) && isHandle(handle)) {
      latest.set(message.key, handle);
      receivers.set(handle, worker);
    }
    return send(...args);
  };
  return () => {
    // One that refused a connection is not to blame for it any more.
    for (const handle of latest.values()) if (receivers.get(handle) === worker) handle.close();
  };
}

function isHandover(message: unknown): message is { readonly key: unknown } {
  return typeof message === 'object' && message !== null && 'act' in message && message.act === 'newconn';
}

function isHandle(handle: unknown): handle is Handle {
  return typeof handle === 'object' && handle !== null && 'close' in handle;
}
