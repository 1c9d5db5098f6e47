/**
 * What can be wrong with a YAML document before its values are looked at: syntax, aliases, keys. No message repeats
 * text of the file other than keys, since an unquoted secret can be the very thing that does not parse.
 */
import { type Document, isAlias, isMap, isNode, isScalar, isSeq, type Node, type YAMLError } from 'yaml';
import { type FieldPath, formatPath } from './fields.ts';

export interface YamlProblem {
  /** Index into the text. */
  readonly offset: number;
  readonly path: string;
  readonly message: string;
}

export interface YamlValues {
  /** False = the document cannot be turned into values. */
  readonly readable: boolean;
  readonly value: unknown;
  readonly problems: readonly YamlProblem[];
}

/** `document` has no errors of syntax. Keys that stand twice leave it readable: the last one counts. */
export function readYaml(document: Document): YamlValues {
  const walk = new Walk(document);
  walk.visit(document.contents, [], []);
  const { readable, problems } = walk;
  if (!readable) return { readable, value: undefined, problems };
  try {
    return { readable, value: document.toJS(), problems };
  } catch {
    // Aliases of aliases of aliases: the only thing left that the parser refuses, before they fill the memory.
    return {
      readable: false,
      value: undefined,
      problems: [{ offset: 0, path: '', message: 'its aliases unfold to far too much' }],
    };
  }
}

class Walk {
  readonly problems: YamlProblem[] = [];
  readable = true;
  readonly #document: Document;

  constructor(document: Document) {
    this.#document = document;
  }

  /** `parents`: the nodes around this one. Aliases are looked up and not entered. */
  visit(node: unknown, path: FieldPath, parents: readonly Node[]): void {
    if (!isNode(node)) return;
    if (isAlias(node)) {
      const target = node.resolve(this.#document);
      if (!target)
        this.#refuse(node, path, "begins with '*', and there is no anchor of this name: quote it if it is text");
      else if (parents.includes(target)) this.#refuse(node, path, 'stands for the mapping or list that it is part of');
    } else if (isSeq(node)) {
      node.items.forEach((item, index) => {
        this.visit(item, [...path, index], [...parents, node]);
      });
    } else if (isMap(node)) {
      const keys = new Set<string>();
      for (const { key, value } of node.items) {
        const name = isScalar(key) ? String(key.value) : undefined;
        if (name === undefined) this.#refuse(isNode(key) ? key : node, path, 'has a key that is no text');
        else if (keys.has(name)) this.#add(key as Node, [...path, name], 'this key stands here twice');
        keys.add(name ?? '');
        this.visit(value, [...path, name ?? ''], [...parents, node]);
      }
    }
  }

  #refuse(node: Node, path: FieldPath, message: string): void {
    this.readable = false;
    this.#add(node, path, message);
  }

  #add(node: Node, path: FieldPath, message: string): void {
    this.problems.push({ offset: node.range?.[0] ?? 0, path: formatPath(path), message });
  }
}

const EXPLAINED: Partial<Record<YAMLError['code'], string>> = {
  TAB_AS_INDENT: 'tabs must not be used for indentation: use blanks',
  TAG_RESOLVE_FAILED: "begins with '!', which makes it a tag that is not known: quote it if it is text",
  BAD_DIRECTIVE: "begins with '%', which makes it a directive that is not known",
  BAD_DQ_ESCAPE: "this is not YAML: unknown escape in double quotes (a backslash is written '\\\\')",
  MULTIPLE_DOCS: 'a second document begins here: there must be one',
};

/** The parser's own words, up to where it quotes the file. */
export function explainYaml({ code, message }: Pick<YAMLError, 'code' | 'message'>): string {
  return EXPLAINED[code] ?? `this is not YAML: ${message.split(/:|\n/)[0] ?? ''}`;
}
