/** Ends a connection with a reset where that is possible, so that the peer cannot take it for a proper end. */
import { Socket } from 'node:net';
import type { Duplex } from 'node:stream';

export function abort(socket: Duplex): void {
  if (socket.destroyed) return;
  // TLS has an end of its own that is missing then, and Node resets plain TCP sockets only.
  if (socket instanceof Socket && !('encrypted' in socket)) socket.resetAndDestroy();
  else socket.destroy();
}
