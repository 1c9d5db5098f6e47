/** One stage of the pipeline by itself: a request context without a socket behind it, and a `next` that says it was called. */
import { IncomingMessage, type ServerResponse } from 'node:http';
import { Socket } from 'node:net';
import { type Handler, type Middleware, RequestContext } from '../../lib/context.ts';

export interface RequestSketch {
  readonly method?: string;
  readonly url?: string;
  /** Names and values in turn, as they came. */
  readonly rawHeaders?: readonly string[];
  readonly remoteAddress?: string;
  readonly httpVersion?: string;
}

/** What Node's parser calls for the fields of a head: from then on `headers` has them by Node's rules. */
interface HeaderLines {
  _addHeaderLines(rawHeaders: readonly string[], length: number): void;
}

/** A request as the parser leaves it, for heads too that the parser of today would refuse. */
export function requestOf(sketch: RequestSketch): IncomingMessage {
  const socket = new Socket();
  Object.defineProperty(socket, 'remoteAddress', { value: sketch.remoteAddress });
  const request = new IncomingMessage(socket);
  const rawHeaders = sketch.rawHeaders ?? [];
  (request as unknown as HeaderLines)._addHeaderLines(rawHeaders, rawHeaders.length);
  const [major = 1, minor = 1] = (sketch.httpVersion ?? '1.1').split('.').map(Number);
  Object.assign(request, {
    method: sketch.method ?? 'GET',
    url: sketch.url ?? '/',
    rawHeaders: [...rawHeaders],
    httpVersionMajor: major,
    httpVersionMinor: minor,
  });
  return request;
}

/** What a stage has answered by itself. */
export class RecordedResponse {
  status = 0;
  headers: readonly string[] = [];
  ended = false;

  writeHead(status: number, headers: readonly string[]): this {
    this.status = status;
    this.headers = headers;
    return this;
  }

  end(): this {
    this.ended = true;
    return this;
  }
}

export function contextOf(sketch: RequestSketch, response = new RecordedResponse()): RequestContext {
  return new RequestContext(requestOf(sketch), response as unknown as ServerResponse, null, 0);
}

/** Runs the stage; the result says how often `next` was called and whether the stage returned what it returned. */
export function runStage(stage: Middleware, context: RequestContext): { nexts: number; passedOn: boolean } {
  let nexts = 0;
  const result = Promise.resolve();
  const next: Handler = (given) => {
    if (given !== context) throw new Error('next was called with another context');
    nexts += 1;
    return result;
  };
  const returned = stage(context, next);
  return { nexts, passedOn: returned === result };
}
