//! Translates Oniguruma regular expressions of `tokenizer.json` to the dialect of `fancy_regex`.
//!
//! - `{1,3}+` repeats a repetition; it is not possessive.
//! - `^` and `$` match at every line.
//! - The flag `m` lets a dot match line ends.
//! - `\w` and `[:names:]` are wider or narrower sets.

use serde_json::Value as Json;
use std::{iter::Peekable, str::CharIndices};

/// Oniguruma's `\w` has no joiners. Outside of brackets it includes six Latin-1 numbers that are
/// not digits.
const WORD: &str = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}";
const NUMBERS: &str = "²³¹¼½¾";

/// Maximum bytes of an expression; published ones have fewer than two thousand.
const LONGEST: usize = 1 << 16;

/// Translates all expressions of a step and its nested steps in place.
pub(super) fn translate(json: &mut Json) -> Result<(), String> {
    match json {
        Json::Array(steps) => steps.iter_mut().try_for_each(translate),
        Json::Object(fields) => {
            fields.iter_mut().try_for_each(|(name, value)| match value.get_mut("Regex") {
                Some(Json::String(pattern)) if name == "pattern" => {
                    if pattern.len() > LONGEST {
                        return Err(format!(
                            "an expression of {} bytes; at most {LONGEST} are supported",
                            pattern.len()
                        ));
                    }
                    *pattern = spelled_out(pattern);
                    Ok(())
                }
                _ => translate(value),
            })
        }
        _ => Ok(()),
    }
}

/// The equivalent expression in the `fancy_regex` dialect.
fn spelled_out(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    // Start offsets of open groups, and of the atom that a quantifier would apply to.
    let (mut open, mut atom) = (Vec::new(), 0);
    let mut chars = pattern.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let start = out.len();
        match c {
            '\\' => {
                escape(&mut chars, &mut out, false);
                atom = start;
            }
            '[' => {
                class(&mut chars, &mut out);
                atom = start;
            }
            '(' => {
                open.push(start);
                out.push('(');
                if !flags(&pattern[at + 1..], &mut chars, &mut out) {
                    // Extended mode (`x`) changes the syntax; leave such expressions as they are.
                    return pattern.to_owned();
                }
            }
            ')' => {
                out.push(')');
                atom = open.pop().unwrap_or(start);
            }
            '^' | '$' => out.extend(["(?m:", if c == '^' { "^" } else { "$" }, ")"]),
            '{' => match times(&pattern[at..]) {
                Some((times, length)) => {
                    skip(&mut chars, length - 1);
                    if chars.next_if(|(_, next)| *next == '+').is_some() {
                        out.insert_str(atom, "(?:");
                        out.extend([&times, ")+"]);
                    } else {
                        out.push_str(&times);
                    }
                }
                None => out.push(c),
            },
            '*' | '+' | '?' => out.push(c),
            _ => {
                out.push(c);
                atom = start;
            }
        }
    }
    out
}

/// An escape sequence: a translated set, or copied with its whole property name.
fn escape(chars: &mut Peekable<CharIndices<'_>>, out: &mut String, in_class: bool) {
    let Some((_, c)) = chars.next() else { return out.push('\\') };
    match c {
        'w' if in_class => out.push_str(WORD),
        'W' if in_class => out.extend(["[^", WORD, "]"]),
        'w' => out.extend(["[", WORD, NUMBERS, "]"]),
        'W' => out.extend(["[^", WORD, NUMBERS, "]"]),
        _ => {
            out.extend(['\\', c]);
            let named = chars.peek().is_some_and(|(_, next)| *next == '{');
            if named && "pPxuk".contains(c) {
                for (_, c) in chars.by_ref() {
                    out.push(c);
                    if c == '}' {
                        break;
                    }
                }
            }
        }
    }
}

/// A character class with nested classes; its opening bracket was consumed.
fn class(chars: &mut Peekable<CharIndices<'_>>, out: &mut String) {
    let mut open = 1;
    begin(chars, out);
    while open > 0 {
        let Some((_, c)) = chars.next() else { return };
        match c {
            '\\' => escape(chars, out, true),
            '[' if chars.peek().is_some_and(|(_, c)| *c == ':') => named(chars, out),
            '[' => {
                open += 1;
                begin(chars, out);
            }
            ']' => {
                open -= 1;
                out.push(']');
            }
            _ => out.push(c),
        }
    }
}

/// Start of a class: an optional `^`, and a leading `]` that is a literal.
fn begin(chars: &mut Peekable<CharIndices<'_>>, out: &mut String) {
    out.push('[');
    if chars.next_if(|(_, c)| *c == '^').is_some() {
        out.push('^');
    }
    if chars.next_if(|(_, c)| *c == ']').is_some() {
        out.push_str(r"\]");
    }
}

/// A POSIX class such as `[:alpha:]`; its opening bracket was consumed.
fn named(chars: &mut Peekable<CharIndices<'_>>, out: &mut String) {
    let name: String = chars.by_ref().map(|(_, c)| c).take_while(|c| *c != ']').collect();
    let (bare, not) = match name.strip_prefix(":^") {
        Some(rest) => (rest, "^"),
        None => (&name[1..], ""),
    };
    let set = match bare {
        "alpha:" => r"\p{Alphabetic}",
        "alnum:" => r"\p{Alphabetic}\p{Nd}",
        "blank:" => r"\p{Zs}\t",
        "cntrl:" => r"\p{Cc}",
        "digit:" => r"\p{Nd}",
        "lower:" => r"\p{Lowercase}",
        "punct:" => r"\p{P}\p{S}",
        "space:" => r"\s",
        "upper:" => r"\p{Uppercase}",
        "word:" => WORD,
        // Same name and meaning in the target dialect, or rejected by it.
        _ => return out.extend(["[", &name, "]"]),
    };
    out.extend(["[", not, set, "]"]);
}

/// Inline flags of a group such as `(?m:`. Returns false for extended mode, which changes the
/// remaining syntax.
fn flags(rest: &str, chars: &mut Peekable<CharIndices<'_>>, out: &mut String) -> bool {
    let Some(flags) = rest.strip_prefix('?') else { return true };
    let length = flags.bytes().take_while(|b| b"imx-".contains(b)).count();
    if length > 0 && flags[length..].starts_with([':', ')']) {
        skip(chars, length + 1);
        out.push('?');
        out.extend(flags[..length].chars().map(|flag| if flag == 'm' { 's' } else { flag }));
        return !flags[..length].contains('x');
    }
    // Group heads such as `(?:`, `(?=`, `(?<!` and names are not atoms.
    let head = flags.len() - flags.trim_start_matches(['<', ':', '=', '!', '>']).len();
    skip(chars, head + 1);
    out.extend(["?", &flags[..head]]);
    true
}

fn skip(chars: &mut Peekable<CharIndices<'_>>, count: usize) {
    chars.by_ref().take(count).for_each(|_| ());
}

/// A braced quantifier at the start of `text`, and its length.
fn times(text: &str) -> Option<(String, usize)> {
    let inner = &text[1..text.find('}')?];
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let spelled = match inner.split_once(',') {
        None if !inner.is_empty() && number(inner) => format!("{{{inner}}}"),
        Some(("", most)) if !most.is_empty() && number(most) => format!("{{0,{most}}}"),
        Some((least, most)) if !least.is_empty() && number(least) && number(most) => format!("{{{inner}}}"),
        _ => return None,
    };
    Some((spelled, inner.len() + 2))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use fancy_regex::Regex;

    /// Matches recorded with the reference implementation.
    #[test]
    fn translated_expressions_match_as_oniguruma_does() {
        for (pattern, text, found) in [
            (r"\p{N}{1,3}+", "a1234567b", vec!["1234567"]),
            (r"\p{N}{2}+", "a1234567b", vec!["123456"]),
            (r"\p{N}{1,3}", "a1234567b", vec!["123", "456", "7"]),
            (r"(ab){1,2}+c", "xababababc", vec!["ababababc"]),
            (r"[0-9]{2,}+5", "a12345b", vec!["12345"]),
            (r"[[:digit:]x]{,2}+b", "a123x5b", vec!["123x5b"]),
            (r"^a", "a\na", vec!["a", "a"]),
            (r"\s++$", "a  \n\n b ", vec![" "]),
            (r"a$", "a\nba", vec!["a", "a"]),
            (r"(?m:a.)", "a\nab", vec!["a\n", "ab"]),
            (r"(?i:'s)|\w+", "Is¼'S\u{200d}x", vec!["Is¼", "'S", "x"]),
            (r"[^\w']+|\W", "a\u{200c} ²'b", vec!["\u{200c} ²", "'"]),
            (r"[[:punct:]]+|[^\S[:^space:]]", "a+¿« b", vec!["+¿«", " "]),
            (
                r"[[:cntrl:]]|[[:blank:]]+|[[:upper:]]",
                "\u{7}\u{200b} \u{a0}\u{3000}Ⅰ",
                vec!["\u{7}", " \u{a0}\u{3000}", "Ⅰ"],
            ),
            (r"[[:alpha:]&&[^a]]+", "aébb1", vec!["ébb"]),
            (r"[]a{]{1,2}+", "x]a{]a", vec!["]a{]a"]),
            (r"(?<![\d$])\$\d{1,3}+(?=\b)", "$$1 $2345", vec!["$2345"]),
        ] {
            let regex = Regex::new(&spelled_out(pattern)).unwrap();
            let all: Vec<&str> = regex.find_iter(text).map(|m| m.unwrap().as_str()).collect();
            assert_eq!(all, found, "{pattern} as {regex} in {text:?}");
        }
    }

    #[test]
    fn common_syntax_is_not_translated() {
        for pattern in [
            r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r" ?[^(\s|[.,!?…。，、।۔،])]+",
            r"(?=(\d{3})+(?!\d))|\x{4e00}\{2}+a{b}",
            r"\\[\[\]{1}+\]]?(?<name>a)\k<name>",
            "[",
            "(",
            "a{",
            "\\",
        ] {
            assert_eq!(spelled_out(pattern), pattern);
        }
    }
}
