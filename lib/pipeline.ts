/**
 * The table of contents of the program: what happens to a request, in order. Each stage says in its own file what it
 * reads and sets.
 */
import { compose, type Handler, type Middleware } from './context.ts';

export interface Stages {
  readonly requestId: Middleware;
  readonly accessLog: Middleware;
  readonly errorBoundary: Middleware;
  readonly ipAllow: Middleware;
  readonly cors: Middleware;
  readonly match: Middleware;
  readonly versionByRule: Middleware;
  readonly loginRequest: Middleware;
  readonly versionByUser: Middleware;
  readonly stickyRoute: Middleware;
  readonly balance: Middleware;
  readonly loginResponse: Middleware;
  readonly forward: Middleware;
}

export function buildPipeline(stages: Stages): Handler {
  return compose([
    stages.requestId,
    stages.accessLog,
    stages.errorBoundary,
    stages.ipAllow,
    stages.cors,
    stages.match,
    stages.versionByRule,
    stages.loginRequest,
    stages.versionByUser,
    stages.stickyRoute,
    stages.balance,
    stages.loginResponse,
    stages.forward,
  ]);
}
