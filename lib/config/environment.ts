/**
 * `${NAME}` and `${NAME:-default}` in the texts of a configuration, replaced after parsing, so that a value can never
 * change the structure of the file. `$${` stands for a plain `${`.
 */
import { type FieldPath, formatPath, isPlainObject, type Problems } from './fields.ts';

const REFERENCE = /\$\$\{|\$\{([^}]*)(\}?)/g;
const PARTS = /^([A-Za-z_][A-Za-z0-9_]*)(?::-((?:(?!\$\{).)*))?$/s;

/** A copy of `value` with every reference replaced; what cannot be replaced is noted, and which texts had references. */
export function substitute(
  value: unknown,
  environment: Readonly<Record<string, string | undefined>>,
  problems: Problems,
  path: FieldPath = [],
): unknown {
  if (typeof value === 'string') return substituteText(value, environment, problems, path);
  if (Array.isArray(value)) {
    return value.map((item: unknown, index) => substitute(item, environment, problems, [...path, index]));
  }
  if (!isPlainObject(value)) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [key, substitute(item, environment, problems, [...path, key])]),
  );
}

function substituteText(
  text: string,
  environment: Readonly<Record<string, string | undefined>>,
  problems: Problems,
  path: FieldPath,
): string {
  const names: string[] = [];
  const mistakes: string[] = [];
  const replaced = text.replaceAll(REFERENCE, (_whole, inner: string | undefined, close: string | undefined) => {
    if (inner === undefined) return '${';
    const found = close === '' ? null : PARTS.exec(inner);
    if (!found) {
      // Not repeated: what stands there may be a secret.
      mistakes.push("'${' begins no reference: write ${NAME} or ${NAME:-default}, or $${ for a plain ${");
      return '';
    }
    const [, name = '', fallback] = found;
    names.push(name);
    const value = environment[name];
    // As in a shell, ':-' also stands in for a variable that is set but empty.
    if (fallback !== undefined) return value === undefined || value === '' ? fallback : value;
    if (value === undefined) {
      mistakes.push(`the environment variable ${name} is not set (\${${name}:-default} gives a default)`);
    }
    return value ?? '';
  });
  if (names.length > 0) problems.variables.set(formatPath(path), names);
  if (mistakes.length > 0) problems.add(path, mistakes.join('; '));
  return replaced;
}
