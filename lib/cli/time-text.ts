/** Points in time as people read them: how long ago. */

/** `12 s`, `5 min`, `3 h`, `2 d` */
export function spanText(spanMs: number): string {
  const seconds = Math.max(0, Math.round(spanMs / 1_000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7_200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.round(seconds / 3_600)} h` : `${Math.round(seconds / 86_400)} d`;
}

/** `time`: ISO 8601, or what the API gives for never. */
export function agoText(time: unknown, nowMs: number): string {
  const ms = typeof time === 'string' ? Date.parse(time) : Number.NaN;
  return Number.isNaN(ms) ? 'never' : `${spanText(nowMs - ms)} ago`;
}
