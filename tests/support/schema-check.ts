/** Holds a value against as much of JSON Schema as the OpenAPI document uses; refuses keywords it does not know. */

type Schema = Readonly<Record<string, unknown>>;

const IGNORED = new Set(['description', 'format']);

/** What is wrong with `value`, each with its place; empty = it fits. */
export function schemaFaults(value: unknown, schema: Schema, document: Schema, place = '$'): string[] {
  const faults: string[] = [];
  const wrong = (what: string) => faults.push(`${place}: ${what}: ${JSON.stringify(value)?.slice(0, 200)}`);
  for (const [keyword, wanted] of Object.entries(schema)) {
    if (IGNORED.has(keyword)) continue;
    switch (keyword) {
      case '$ref':
        faults.push(...schemaFaults(value, follow(wanted as string, document), document, place));
        break;
      case 'type':
        if (!isType(value, wanted as string)) wrong(`is no ${wanted}`);
        break;
      case 'const':
        if (value !== wanted) wrong(`is not ${wanted}`);
        break;
      case 'enum':
        if (!(wanted as unknown[]).includes(value)) wrong(`is none of ${wanted}`);
        break;
      case 'minimum':
        if (typeof value === 'number' && value < (wanted as number)) wrong(`is below ${wanted}`);
        break;
      case 'pattern':
        if (typeof value === 'string' && !new RegExp(wanted as string, 'u').test(value))
          wrong(`does not match ${wanted}`);
        break;
      case 'anyOf':
        if (!(wanted as Schema[]).some((one) => schemaFaults(value, one, document, place).length === 0))
          wrong('fits none of anyOf');
        break;
      case 'items':
        if (Array.isArray(value))
          for (const [index, item] of value.entries())
            faults.push(...schemaFaults(item, wanted as Schema, document, `${place}[${index}]`));
        break;
      case 'required':
        for (const key of wanted as string[]) if (isObject(value) && !(key in value)) wrong(`lacks ${key}`);
        break;
      case 'properties':
        for (const [key, one] of Object.entries(wanted as Record<string, Schema>))
          if (isObject(value) && key in value)
            faults.push(...schemaFaults(value[key], one, document, `${place}.${key}`));
        break;
      case 'additionalProperties':
        if (isObject(value))
          for (const key of Object.keys(value)) {
            if (key in ((schema['properties'] as object | undefined) ?? {})) continue;
            if (wanted === false) wrong(`has ${key} besides`);
            else faults.push(...schemaFaults(value[key], wanted as Schema, document, `${place}.${key}`));
          }
        break;
      default:
        throw new Error(`the checker does not know ${keyword}`);
    }
  }
  return faults;
}

function follow(reference: string, document: Schema): Schema {
  const found = reference
    .slice(2)
    .split('/')
    .reduce<unknown>((value, key) => (value as Schema | undefined)?.[key], document);
  if (!isObject(found)) throw new Error(`${reference} leads nowhere`);
  return found;
}

function isType(value: unknown, type: string): boolean {
  if (type === 'null') return value === null;
  if (type === 'array') return Array.isArray(value);
  if (type === 'object') return isObject(value);
  if (type === 'integer') return Number.isInteger(value);
  return typeof value === type;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
