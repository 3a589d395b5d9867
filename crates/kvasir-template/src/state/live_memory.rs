//! Live-memory walk of a template run: counts the bytes reachable from variables. Shared parts
//! count once.

use crate::state::Interp;
use crate::values::value::Value;
use serde_json::Value as Json;
use std::{collections::HashSet, mem::size_of, sync::Arc};

/// Assumed overhead per allocation, in bytes.
const HEADER: usize = 48;

/// A traversal of reachable values.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    seen: HashSet<usize>,
    /// Bytes found.
    pub(crate) bytes: usize,
    /// Values visited.
    pub(crate) steps: usize,
}

impl Walk {
    fn enter<T: ?Sized>(&mut self, part: &Arc<T>, known: &HashSet<usize>, bytes: usize) -> bool {
        let place = Arc::as_ptr(part).cast::<()>() as usize;
        let new = !known.contains(&place) && self.seen.insert(place);
        if new {
            self.bytes += HEADER + bytes;
        }
        new
    }

    fn value(&mut self, value: &Value, known: &HashSet<usize>) {
        self.steps += 1;
        match value {
            Value::Str(s) | Value::Safe(s) => {
                self.enter(s, known, s.len());
            }
            Value::Undefined(missing) => {
                self.enter(&missing.name, known, missing.name.len());
            }
            Value::List(l) | Value::Tuple(l) | Value::View(l, _) => {
                let new = self.enter(l, known, l.items.len() * size_of::<Value>());
                if new {
                    l.items.iter().for_each(|v| self.value(v, known));
                }
            }
            Value::Dict(d) => {
                let new = self.enter(d, known, d.map.len() * size_of::<Value>() * 3);
                if new {
                    d.map.iter().flat_map(|(k, v)| [&k.0, v]).for_each(|v| self.value(v, known));
                }
            }
            Value::Method(m) => {
                let new = self.enter(m, known, size_of::<Value>());
                if new {
                    self.value(&m.0, known);
                }
            }
            _ => {}
        }
    }
}

/// Number of values, including nested ones.
pub(crate) fn count<'a>(values: impl Iterator<Item = &'a Json>) -> u64 {
    let inner = |value: &'a Json| match value {
        Json::Array(a) => count(a.iter()),
        Json::Object(o) => count(o.values()),
        _ => 0,
    };
    values.map(|v| 1 + inner(v)).sum()
}

impl Interp {
    /// Visits everything reachable from variables, namespaces and loops, except the caller's
    /// inputs.
    pub(crate) fn walk_alive(&mut self) -> Walk {
        let mut walk = Walk::default();
        if self.inputs.is_empty() {
            self.scopes
                .iter()
                .take(1)
                .flat_map(|s| s.vars.values())
                .for_each(|v| walk.value(v, &self.inputs));
            self.inputs = std::mem::take(&mut walk.seen);
            walk.bytes = 0;
        }
        let slot = 2 * size_of::<Value>();
        for scope in self.scopes.iter().skip(1) {
            walk.bytes += crate::state::budget::SCOPE + scope.vars.len() * crate::state::budget::VARIABLE;
            walk.steps += 1;
            scope.vars.values().for_each(|v| walk.value(v, &self.inputs));
        }
        for namespace in &self.namespaces {
            walk.bytes += HEADER + namespace.len() * 2 * slot;
            namespace.iter().flat_map(|(k, v)| [&k.0, v]).for_each(|v| walk.value(v, &self.inputs));
        }
        for state in &self.loops {
            walk.bytes += HEADER + slot * (state.items.len() + state.rest.len());
            let changed = state.changed.iter().flatten();
            state
                .items
                .iter()
                .chain(state.rest.as_slice())
                .chain(changed)
                .for_each(|v| walk.value(v, &self.inputs));
        }
        for (items, _) in &self.cyclers {
            walk.bytes += HEADER + slot * items.len();
            items.iter().for_each(|v| walk.value(v, &self.inputs));
        }
        walk.bytes += self.joiners.iter().map(|(text, _)| HEADER + text.len()).sum::<usize>();
        walk
    }
}
