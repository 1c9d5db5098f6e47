/** Why an address could not be taken, in words that say what to do. */

export function explainListen(error: NodeJS.ErrnoException, host: string, port: number): string {
  const place = `${host.includes(':') ? `[${host}]` : host}:${port}`;
  switch (error.code) {
    case 'EADDRINUSE':
      return `cannot listen on ${place}: another program listens there already`;
    case 'EACCES':
      return `cannot listen on ${place}: this user may not take that port (below 1024 needs CAP_NET_BIND_SERVICE)`;
    case 'EADDRNOTAVAIL':
    case 'ENOTFOUND':
      return `cannot listen on ${place}: this machine has no such address`;
    default:
      return `cannot listen on ${place}: ${error.message}`;
  }
}
