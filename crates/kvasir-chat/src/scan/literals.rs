//! `LiteralReader`: the lists and maps of literals that call syntaxes share, as JSON values.

use serde_json::{Map, Value};

/// Maximum nesting depth of an argument.
const MAX_DEPTH: usize = 64;

/// A recursive-descent parser of literals. Its methods return `None` if the text does not fit.
pub(super) trait LiteralReader<'a> {
    /// The text that is not consumed yet.
    fn rest(&mut self) -> &mut &'a str;

    /// Consumes a literal at nesting depth `depth`. No white space precedes it.
    fn literal(&mut self, depth: usize) -> Option<Value>;

    /// Consumes the key of a map entry.
    fn key(&mut self) -> Option<String>;

    /// Skips white space, then consumes a literal at nesting depth `depth`. `None` if that exceeds
    /// [`MAX_DEPTH`].
    fn value(&mut self, depth: usize) -> Option<Value> {
        let rest = self.rest();
        *rest = rest.trim_start();
        if depth > MAX_DEPTH { None } else { self.literal(depth) }
    }

    /// Consumes the text before the first character for which `is_end` holds, or all of it.
    fn take_until(&mut self, is_end: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let (taken, after) = rest.split_at(rest.find(is_end).unwrap_or(rest.len()));
        *rest = after;
        taken
    }

    /// Skips white space, then consumes `mark` if it follows.
    fn take(&mut self, mark: char) -> bool {
        let rest = self.rest();
        *rest = rest.trim_start();
        let after = rest.strip_prefix(mark);
        *rest = after.unwrap_or(rest);
        after.is_some()
    }

    /// Consumes the comma after an item, or nothing before the end mark `close`.
    fn take_separator(&mut self, close: char) -> bool {
        self.take(',') || self.rest().starts_with(close)
    }

    /// Consumes a list.
    fn items(&mut self, open: char, close: char, depth: usize) -> Option<Value> {
        self.take(open);
        let mut items = Vec::new();
        while !self.take(close) {
            items.push(self.value(depth + 1)?);
            if !self.take_separator(close) {
                return None;
            }
        }
        Some(items.into())
    }

    /// Consumes a map.
    fn map(&mut self, depth: usize) -> Option<Value> {
        self.take('{');
        let mut map = Map::new();
        while !self.take('}') {
            let key = self.key()?;
            if !self.take(':') {
                return None;
            }
            map.insert(key, self.value(depth + 1)?);
            if !self.take_separator('}') {
                return None;
            }
        }
        Some(Value::Object(map))
    }
}
