/** Ends a connection with a reset where that is possible, so that the peer cannot take it for a proper end. */
import { Socket } from 'node:net';
import type { Duplex } from 'node:stream';

/** What Node's own resetAndDestroy sets; destroy looks at it. */
interface Resettable {
  resetAndClosing?: boolean;
}

export function abort(socket: Duplex): void {
  if (socket.destroyed) return;
  // TLS has an end of its own that is missing then, and Node resets plain TCP sockets only. One whose FIN is on its way
  // cannot be reset any more.
  const ending = socket.writableEnded && !socket.writableFinished;
  if (socket instanceof Socket && !('encrypted' in socket) && !ending && !socket.connecting) {
    // resetAndDestroy sends a FIN and resets behind it, so that the peer may see a proper end all the same
    // (https://github.com/nodejs/node/blob/v20.x/lib/net.js, destroySoon).
    (socket as Resettable).resetAndClosing = true;
  }
  socket.destroy();
}
