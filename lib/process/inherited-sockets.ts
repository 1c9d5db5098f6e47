/**
 * Sockets that systemd opened for this process (socket activation, sd_listen_fds(3)): which descriptor belongs to
 * which configured address. Listening on them is done by the listeners.
 */
import { OperatorError } from '../errors.ts';

const FIRST_DESCRIPTOR = 3;
/** Descriptors of this name belong to the admin listener. */
const ADMIN_NAME = 'admin';

export interface InheritedSocket {
  readonly fd: number;
}

export interface InheritedSockets {
  /** By index of `listen`; null = the address is to be bound. */
  readonly listen: readonly (InheritedSocket | null)[];
  readonly admin: InheritedSocket | null;
}

type Environment = Record<string, string | undefined>;

/**
 * Takes the variables out of `environment`, so that no child takes the descriptors for its own. Those named `admin`
 * (FileDescriptorName=) go to the admin listener, the others to the addresses of `listen` in order. Throws
 * OperatorError when there are more than the configuration has addresses.
 */
export function takeInheritedSockets(
  environment: Environment,
  pid: number,
  configured: { readonly listen: readonly unknown[]; readonly admin: { readonly listen: unknown } },
): InheritedSockets {
  const { LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES } = environment;
  for (const name of ['LISTEN_PID', 'LISTEN_FDS', 'LISTEN_FDNAMES', 'LISTEN_PIDFDID']) delete environment[name];
  const count = Number(LISTEN_PID) === pid && /^\d+$/.test(LISTEN_FDS ?? '') ? Number(LISTEN_FDS) : 0;
  const names = (LISTEN_FDNAMES ?? '').split(':');
  const sockets = Array.from({ length: count }, (_, index) => ({
    fd: FIRST_DESCRIPTOR + index,
    admin: names[index] === ADMIN_NAME,
  }));
  const forAdmin = sockets.filter(({ admin }) => admin);
  const forListen = sockets.filter(({ admin }) => !admin);
  if (forAdmin.length > (configured.admin.listen === null ? 0 : 1))
    throw new OperatorError(
      `systemd passed ${forAdmin.length} sockets named '${ADMIN_NAME}': admin.listen takes one, unless it is null`,
    );
  if (forListen.length > configured.listen.length)
    throw new OperatorError(
      `systemd passed ${forListen.length} sockets, but listen names ${configured.listen.length}: they are taken in order`,
    );
  return {
    listen: configured.listen.map((_, index) => socketAt(forListen, index)),
    admin: socketAt(forAdmin, 0),
  };
}

function socketAt(sockets: readonly InheritedSocket[], index: number): InheritedSocket | null {
  const socket = sockets[index];
  return socket ? { fd: socket.fd } : null;
}
