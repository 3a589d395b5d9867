// Programming languages that code blocks are highlighted in: comments, strings and keywords of each.

const words = (text) => new Set(text.split(" "));

const SLASHES = String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)`;
const HASH = String.raw`(?<![^\s])#[^\n]*`;
const DASHES = String.raw`--[^\n]*|\/\*[^]*?(?:\*\/|$)`;
const DOUBLE = String.raw`"(?:[^"\\\n]|\\[^])*"?`;
const SINGLE = String.raw`'(?:[^'\\\n]|\\[^])*'?`;
const BOTH = `${DOUBLE}|${SINGLE}`;
const BACKTICKS = "`(?:[^`\\\\]|\\\\[^])*`?";
const TRIPLE = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)`;
/** A character; `'a` without an end is a lifetime. */
const CHARACTER = String.raw`'(?:\\[^'\n]{1,12}|[^'\\\n])'`;

const JAVASCRIPT = "as async await break case catch class const continue debugger default delete do else export extends false finally for from function get if import in instanceof let new null of return set static super switch this throw true try typeof undefined var void while with yield";
const TYPES = "abstract any boolean declare enum implements interface keyof namespace never number private protected public readonly string type unknown";
const C = "auto bool break case char const continue default do double else enum extern false float for goto if inline int long nullptr NULL register return short signed sizeof static struct switch true typedef union unsigned void volatile while";
const CPP = "catch class concept constexpr co_await co_return co_yield decltype delete explicit final friend mutable namespace new noexcept operator override private protected public requires template this throw try typename using virtual";
const JAVA = "abstract assert boolean break byte case catch char class const continue default do double else enum extends false final finally float for if implements import in instanceof int interface long native new null object out override package params private protected public readonly record ref return sealed short static string super switch synchronized this throw throws transient true try using var virtual void volatile when where while yield";

const LANGUAGES = {
  rust: { comment: SLASHES, string: `${DOUBLE}|${CHARACTER}`, words: words("as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type union unsafe use where while bool char f32 f64 i8 i16 i32 i64 i128 isize str u8 u16 u32 u64 u128 usize") },
  python: { comment: HASH, string: `${TRIPLE}|${BOTH}`, words: words("and as assert async await break class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield") },
  javascript: { comment: SLASHES, string: `${BOTH}|${BACKTICKS}`, words: words(JAVASCRIPT) },
  typescript: { comment: SLASHES, string: `${BOTH}|${BACKTICKS}`, words: words(`${JAVASCRIPT} ${TYPES}`) },
  c: { comment: SLASHES, string: BOTH, words: words(C) },
  cpp: { comment: SLASHES, string: BOTH, words: words(`${C} ${CPP}`) },
  java: { comment: SLASHES, string: `${TRIPLE}|${BOTH}`, words: words(JAVA) },
  go: { comment: SLASHES, string: `${BOTH}|${BACKTICKS}`, words: words("any bool break byte case chan const continue default defer else error fallthrough false float64 for func go goto if import int int64 interface map nil package range return rune select string struct switch true type uint uint64 var") },
  kotlin: { comment: SLASHES, string: `${TRIPLE}|${BOTH}`, words: words("as break by class companion const continue data do else enum false for fun if import in init interface internal is lateinit null object open override package private protected public return sealed super suspend this throw true try val var when while") },
  swift: { comment: SLASHES, string: `${TRIPLE}|${DOUBLE}`, words: words("actor as async await break case catch class continue default defer do else enum extension false for func guard if import in init inout internal is let nil open private protocol public return self static struct super switch throw throws true try var where while") },
  ruby: { comment: HASH, string: BOTH, words: words("alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo require rescue retry return self super then true undef unless until when while yield") },
  shell: { comment: HASH, string: BOTH, words: words("case do done elif else esac exit export fi for function if in local read return set shift then until while"), variable: String.raw`\$(?:\w+|\{[^}\n]*\})` },
  sql: { comment: DASHES, string: BOTH, ignoresCase: true, words: words("add all alter and as asc begin between by case commit count create delete desc distinct drop else end exists from full group having in index inner insert into is join key left like limit not null offset on or order outer over partition primary references right rollback select set table then union unique update values view when where with") },
  json: { comment: SLASHES, property: `${DOUBLE}(?=\\s*:)`, string: DOUBLE, words: words("true false null") },
  yaml: { comment: HASH, property: String.raw`(?<=^|\n)[ \t]*(?:- )?[\w./-]+(?=:(?:\s|$))`, string: BOTH, words: words("true false null yes no") },
  toml: { comment: HASH, property: String.raw`(?<=^|\n)[ \t]*(?:\[\[?[^\]\n]*\]\]?|[\w."-]+(?=\s*=))`, string: `${TRIPLE}|${BOTH}`, words: words("true false") },
  html: { comment: String.raw`<!--[^]*?(?:-->|$)`, keyword: String.raw`<\/?[A-Za-z][\w:-]*|\/?>`, property: String.raw`[\w:@-]+(?==)`, string: BOTH, words: words("") },
  css: { comment: String.raw`\/\*[^]*?(?:\*\/|$)`, keyword: String.raw`@[\w-]+`, property: String.raw`[\w-]+(?=\s*:[^:{]*[;}])`, string: BOTH, words: words("important") },
  diff: { comment: String.raw`(?<=^|\n)(?:@@|diff|index|---|\+\+\+)[^\n]*`, added: String.raw`(?<=^|\n)\+[^\n]*`, removed: String.raw`(?<=^|\n)-[^\n]*`, plain: true, words: words("") },
};

const NAMES = {
  rs: "rust", py: "python", python3: "python", js: "javascript", jsx: "javascript", mjs: "javascript", node: "javascript", ts: "typescript", tsx: "typescript",
  h: "c", "c++": "cpp", cc: "cpp", cxx: "cpp", hpp: "cpp", cuda: "cpp", cu: "cpp", csharp: "java", cs: "java", "c#": "java", scala: "java", dart: "java", php: "java", golang: "go", kt: "kotlin",
  rb: "ruby", bash: "shell", sh: "shell", zsh: "shell", console: "shell", dockerfile: "shell", makefile: "shell", postgresql: "sql", mysql: "sql", sqlite: "sql",
  json5: "json", jsonc: "json", jsonl: "json", yml: "yaml", ini: "toml", conf: "toml", xml: "html", svg: "html", vue: "html", scss: "css", less: "css", patch: "diff",
};

/** The language of this name, if it is known. */
export function languageOf(name) {
  const key = String(name ?? "").toLowerCase();
  return Object.hasOwn(LANGUAGES, key) ? LANGUAGES[key] : Object.hasOwn(NAMES, key) ? LANGUAGES[NAMES[key]] : null;
}
