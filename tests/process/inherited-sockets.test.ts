import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { takeInheritedSockets } from '../../lib/process/inherited-sockets.ts';

describe('takeInheritedSockets', () => {
  const configured = { listen: ['a', 'b'], admin: { listen: 'c' } };
  const take = (environment: Record<string, string | undefined>) => takeInheritedSockets(environment, 42, configured);
  const none = { listen: [null, null], admin: null };

  it('finds none where none are passed, or where they are for another process', () => {
    assert.deepEqual(take({}), none);
    for (const LISTEN_PID of ['41', '', 'x', undefined]) assert.deepEqual(take({ LISTEN_PID, LISTEN_FDS: '2' }), none);
    for (const LISTEN_FDS of ['0', '', '-1', '1.5', 'x', undefined])
      assert.deepEqual(take({ LISTEN_PID: '42', LISTEN_FDS }), none);
  });

  it('counts from descriptor 3 on, in the order of listen, which may name more', () => {
    assert.deepEqual(take({ LISTEN_PID: '42', LISTEN_FDS: '1' }), { listen: [{ fd: 3 }, null], admin: null });
    assert.deepEqual(take({ LISTEN_PID: '42', LISTEN_FDS: '2', LISTEN_FDNAMES: 'x.socket:x.socket' }), {
      listen: [{ fd: 3 }, { fd: 4 }],
      admin: null,
    });
  });

  it('gives the one named admin to the admin listener', () => {
    assert.deepEqual(take({ LISTEN_PID: '42', LISTEN_FDS: '3', LISTEN_FDNAMES: 'x:admin:y' }), {
      listen: [{ fd: 3 }, { fd: 5 }],
      admin: { fd: 4 },
    });
  });

  it('refuses what it has no place for', () => {
    assert.throws(() => take({ LISTEN_PID: '42', LISTEN_FDS: '3' }), /^OperatorError: .*3 sockets, but listen names 2/);
    const admins = { LISTEN_PID: '42', LISTEN_FDS: '2', LISTEN_FDNAMES: 'admin:admin' };
    assert.throws(() => take(admins), /^OperatorError: .*2 sockets named 'admin'/);
    const without = { listen: ['a'], admin: { listen: null } };
    const admin = { LISTEN_PID: '42', LISTEN_FDS: '1', LISTEN_FDNAMES: 'admin' };
    assert.throws(() => takeInheritedSockets(admin, 42, without), /^OperatorError: .*admin\.listen/);
  });

  it('leaves nothing of it for children', () => {
    for (const LISTEN_PID of ['42', '41']) {
      const environment = { LISTEN_PID, LISTEN_FDS: '1', LISTEN_FDNAMES: 'x', LISTEN_PIDFDID: '9', HOME: '/' };
      take(environment);
      assert.deepEqual(environment, { HOME: '/' });
    }
  });
});
