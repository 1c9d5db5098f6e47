/** What processes have used so far, as the kernel counts it under /proc (proc(5)). */
import * as fs from 'node:fs';
import { pause } from './processes.ts';

export interface CpuMicros {
  readonly user: number;
  readonly system: number;
}

/** USER_HZ, which is 100 on every platform Node runs on. */
const MICROS_PER_TICK = 10_000;
const KIB_PER_MIB = 1_024;

/** Sum over the processes, from their start; threads are in it. */
export function cpuMicros(pids: readonly number[]): CpuMicros {
  let user = 0;
  let system = 0;
  for (const pid of pids) {
    // The name in brackets may hold blanks; behind it utime and stime are the 12th and 13th field.
    const fields = fs
      .readFileSync(`/proc/${pid}/stat`, 'utf8')
      .replace(/^.*\) /s, '')
      .split(' ');
    user += Number(fields[11]) * MICROS_PER_TICK;
    system += Number(fields[12]) * MICROS_PER_TICK;
  }
  return { user, system };
}

/** The most memory that was ever resident, since the processes started. */
export function peakMiB(pids: readonly number[]): number {
  return pids.reduce((sum, pid) => {
    const status = fs.readFileSync(`/proc/${pid}/status`, 'utf8');
    return sum + Number(/VmHWM:\s+(\d+) kB/.exec(status)?.[1]) / KIB_PER_MIB;
  }, 0);
}

/** The workers of a master that forks; waits for the first, as a master listens before it forks. */
export async function childrenOf(pid: number): Promise<number[]> {
  for (;;) {
    const children = fs.readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim();
    if (children !== '') return children.split(' ').map(Number);
    await pause(20);
  }
}
