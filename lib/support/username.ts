/** The one way usernames are compared. */

/** Lower case by Unicode's default rules, no trimming: ` alice` is another name. */
export function normalizeUsername(username: string): string {
  return username.toLowerCase();
}
