/**
 * IP addresses as text: lists of networks, and the client's address behind trusted proxies. Nothing in here resolves
 * names or touches sockets.
 */
import { isIPv4, isIPv6 } from 'node:net';

/** Verdicts kept per list; a full cache is emptied, since the peers of a gateway are few or hostile. */
const CACHED_VERDICTS = 1_024;

interface Network {
  /** The address as 16-bit groups: 2 for IPv4, 8 for IPv6. */
  readonly groups: readonly number[];
  readonly prefixBits: number;
}

/** Networks in CIDR notation. IPv4 and IPv4-mapped IPv6 (`::ffff:10.0.0.1`) are the same address. */
export class AddressList {
  readonly #networks: readonly Network[];
  readonly #verdicts = new Map<string, boolean>();

  /** A plain address stands for itself alone. Throws RangeError for what `isCidr` refuses. */
  constructor(cidrs: readonly string[]) {
    this.#networks = cidrs.map((cidr) => {
      const network = parseCidr(cidr);
      if (!network) throw new RangeError(`${JSON.stringify(cidr)} is not an address or a network`);
      return network;
    });
  }

  get size(): number {
    return this.#networks.length;
  }

  /** False for anything that is no address. A zone id (`fe80::1%eth0`) is ignored. */
  has(address: string): boolean {
    if (this.#networks.length === 0) return false;
    const known = this.#verdicts.get(address);
    if (known !== undefined) return known;
    const groups = parseAddress(address);
    const verdict = groups !== undefined && this.#networks.some((network) => contains(network, groups));
    if (this.#verdicts.size >= CACHED_VERDICTS) this.#verdicts.clear();
    this.#verdicts.set(address, verdict);
    return verdict;
  }
}

/** True for an IPv4 or IPv6 address, alone or with a prefix length. Bits behind the prefix may be set. */
export function isCidr(text: string): boolean {
  return parseCidr(text) !== undefined;
}

/** An address in the form to compare, log and send on: without a zone id, lower case, IPv4-mapped as IPv4. */
export function plainAddress(address: string): string {
  if (!address.includes(':')) return address;
  const bare = withoutZone(address).toLowerCase();
  // Every IPv4-mapped address has this group, and no other address is worth the parsing.
  if (!bare.includes('ffff:')) return bare;
  const groups = parseAddress(bare);
  const [high, low] = groups ?? [];
  if (groups?.length !== 2 || high === undefined || low === undefined) return bare;
  return `${high >> 8}.${high & 255}.${low >> 8}.${low & 255}`;
}

/**
 * The client's address: the peer's, unless that is a trusted proxy; then the right-most hop of X-Forwarded-For that
 * is not trusted, or the left-most if all are. A hop that is no address ends the walk at the proxy that wrote it,
 * because nothing to the left of it can be believed.
 *
 * `forwardedFor`: the values of all X-Forwarded-For lines in the order received. Hops may carry ports, brackets and
 * quotes. The result has the form of `plainAddress`.
 */
export function clientAddress(peer: string, forwardedFor: readonly string[], trusted: AddressList): string {
  let current = plainAddress(peer);
  if (forwardedFor.length === 0 || !trusted.has(current)) return current;
  for (let line = forwardedFor.length - 1; line >= 0; line -= 1) {
    const value = forwardedFor[line] ?? '';
    let end = value.length;
    while (end >= 0) {
      const comma = end === 0 ? -1 : value.lastIndexOf(',', end - 1);
      const hop = value.slice(comma + 1, end).trim();
      end = comma;
      // RFC 9110 5.6.1: empty list elements do not count.
      if (hop === '') continue;
      const address = hopAddress(hop);
      if (address === undefined) return current;
      current = address;
      if (!trusted.has(current)) return current;
    }
  }
  return current;
}

/** `1.2.3.4`, `1.2.3.4:5`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:5`, each also in double quotes. */
function hopAddress(hop: string): string | undefined {
  let text = hop;
  if (text.length > 1 && text.startsWith('"') && text.endsWith('"')) text = text.slice(1, -1);
  if (text.startsWith('[')) {
    const close = text.indexOf(']');
    if (close < 0 || !isPortSuffix(text.slice(close + 1))) return undefined;
    const inner = withoutZone(text.slice(1, close));
    return isIPv6(inner) ? plainAddress(inner) : undefined;
  }
  const colon = text.indexOf(':');
  if (colon >= 0 && text.indexOf(':', colon + 1) < 0) {
    if (!isPortSuffix(text.slice(colon))) return undefined;
    text = text.slice(0, colon);
  }
  const bare = withoutZone(text);
  return isIPv4(bare) || isIPv6(bare) ? plainAddress(bare) : undefined;
}

function isPortSuffix(text: string): boolean {
  return text === '' || /^:\d{1,5}$/.test(text);
}

function withoutZone(address: string): string {
  const percent = address.indexOf('%');
  return percent < 0 ? address : address.slice(0, percent);
}

function contains(network: Network, groups: readonly number[]): boolean {
  if (network.groups.length !== groups.length) return false;
  let bits = network.prefixBits;
  for (let index = 0; bits > 0; index += 1, bits -= 16) {
    const difference = (network.groups[index] ?? 0) ^ (groups[index] ?? 0);
    if (bits >= 16 ? difference !== 0 : difference >> (16 - bits) !== 0) return false;
  }
  return true;
}

function parseCidr(text: string): Network | undefined {
  const slash = text.indexOf('/');
  const address = slash < 0 ? text : text.slice(0, slash);
  const groups = parseAddress(address);
  if (!groups) return undefined;
  const bits = groups.length * 16;
  if (slash < 0) return { groups, prefixBits: bits };
  const length = text.slice(slash + 1);
  if (!/^(?:0|[1-9]\d{0,2})$/.test(length)) return undefined;
  // A mapped network counts its 96 leading bits too: ::ffff:10.0.0.0/104 is 10.0.0.0/8.
  const prefixBits = Number(length) - (groups.length === 2 && address.includes(':') ? 96 : 0);
  return prefixBits >= 0 && prefixBits <= bits ? { groups, prefixBits } : undefined;
}

/** 2 groups for IPv4 and IPv4-mapped, 8 for other IPv6. */
function parseAddress(text: string): readonly number[] | undefined {
  const address = withoutZone(text);
  if (isIPv4(address)) return ipv4Groups(address);
  if (!isIPv6(address)) return undefined;
  const groups = ipv6Groups(address);
  const mapped = groups[5] === 0xffff && groups.slice(0, 5).every((group) => group === 0);
  return mapped ? groups.slice(6) : groups;
}

function ipv4Groups(address: string): number[] {
  const [a = 0, b = 0, c = 0, d = 0] = address.split('.').map(Number);
  return [(a << 8) | b, (c << 8) | d];
}

/** `address` has been found valid. */
function ipv6Groups(address: string): number[] {
  const gap = address.indexOf('::');
  if (gap < 0) return groupsOf(address);
  const head = groupsOf(address.slice(0, gap));
  const tail = groupsOf(address.slice(gap + 2));
  return [...head, ...new Array<number>(8 - head.length - tail.length).fill(0), ...tail];
}

function groupsOf(part: string): number[] {
  if (part === '') return [];
  return part.split(':').flatMap((group) => (group.includes('.') ? ipv4Groups(group) : [Number.parseInt(group, 16)]));
}
