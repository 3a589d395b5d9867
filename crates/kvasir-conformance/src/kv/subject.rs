//! Driver shared by the `kv.*` kinds: runs operations, then compares answer and full state after
//! each.

use crate::case::{Case, CaseError};
use crate::compare::{Mismatch, compare};
use crate::outcome::Outcome;
use serde_json::{Map, Value, json};

/// Result of an operation: fields to compare, or the refusal message.
pub(crate) type Answer = Result<Map<String, Value>, String>;

/// The system under test.
pub(crate) trait Subject {
    /// Runs one operation. The outer error means a malformed case.
    fn apply(&mut self, op: &Op) -> Result<Answer, CaseError>;
    /// The complete observable state.
    fn state(&self) -> Value;
    /// Checks internal invariants of the cache.
    fn check(&self) -> Result<(), String>;
}

/// One operation of a case, with typed field access.
pub(crate) struct Op<'a> {
    case: &'a Case,
    body: &'a Value,
}

impl Op<'_> {
    pub(super) fn name(&self) -> Result<&str, CaseError> {
        self.text("op")
    }

    pub(super) fn text(&self, field: &str) -> Result<&str, CaseError> {
        let text = self.body.get(field).and_then(Value::as_str);
        text.ok_or_else(|| self.error(format!("`{field}` must be text")))
    }

    pub(super) fn int(&self, field: &str) -> Result<i64, CaseError> {
        let value = self.body.get(field).and_then(Value::as_i64);
        value.ok_or_else(|| self.error(format!("`{field}` must be a whole number")))
    }

    pub(super) fn optional_int(&self, field: &str) -> Result<Option<i64>, CaseError> {
        self.body.get(field).map(|_| self.int(field)).transpose()
    }

    pub(super) fn ints(&self, field: &str) -> Result<Vec<i64>, CaseError> {
        let list = self.body.get(field).and_then(Value::as_array);
        let ints = list.and_then(|list| list.iter().map(Value::as_i64).collect());
        ints.ok_or_else(|| self.error(format!("`{field}` must be a list of whole numbers")))
    }

    /// A list of integer pairs.
    pub(super) fn pairs(&self, field: &str) -> Result<Vec<(i64, i64)>, CaseError> {
        let pair = |value: &Value| match value.as_array().map(Vec::as_slice) {
            Some([a, b]) => Some((a.as_i64()?, b.as_i64()?)),
            _ => None,
        };
        let list = self.body.get(field).and_then(Value::as_array);
        let pairs = list.and_then(|list| list.iter().map(pair).collect());
        pairs.ok_or_else(|| self.error(format!("`{field}` must be a list of pairs of whole numbers")))
    }

    pub(super) fn error(&self, why: impl Into<String>) -> CaseError {
        self.case.error(why)
    }

    pub(super) fn unknown(&self) -> CaseError {
        self.error(format!("unknown operation {}", self.body))
    }
}

/// Converts to `u32`; out of range is a refusal by the subject, not a malformed case.
pub(crate) fn small(field: &str, value: i64) -> Result<u32, String> {
    u32::try_from(value).map_err(|_| format!("{field} {value} is out of range"))
}

/// Upper bound on the rows of a case's caches.
pub(crate) const MOST_ROWS: u32 = 1 << 20;

/// `given.config.capacity`, bounded by `MOST_ROWS`.
pub(crate) fn capacity(case: &Case) -> Result<u32, CaseError> {
    let capacity = case.given("config")?.get("capacity").and_then(Value::as_u64);
    let capacity = capacity.and_then(|n| u32::try_from(n).ok()).filter(|&n| n <= MOST_ROWS);
    capacity.ok_or_else(|| case.error(format!("`config.capacity` must be a whole number up to {MOST_ROWS}")))
}

/// Runs all operations of a case and compares answer, state and invariants after each.
pub(crate) fn run(case: &Case, subject: &mut dyn Subject) -> Result<Outcome, CaseError> {
    let lists = (case.given("ops")?.as_array(), case.field("expected")?.as_array());
    let (Some(ops), Some(expected)) = lists else {
        return Err(case.error("`given.ops` and `expected` must be lists"));
    };
    if ops.len() != expected.len() {
        return Err(case.error(format!("{} operations, {} expectations", ops.len(), expected.len())));
    }
    for (i, (body, expected)) in ops.iter().zip(expected).enumerate() {
        let answer = subject.apply(&Op { case, body })?;
        let verdict = compare_one(&format!("ops[{i}] {body}"), expected, answer, subject.state());
        let walked = subject.check().map_err(|why| {
            let at = format!("ops[{i}] {body}: bookkeeping");
            Box::new(Mismatch { at, expected: json!("adds up"), got: json!(why) })
        });
        if let Err(mismatch) = verdict.and(walked) {
            return Ok(Outcome::Failed(mismatch));
        }
    }
    Ok(Outcome::Passed)
}

fn compare_one(at: &str, expected: &Value, answer: Answer, state: Value) -> Result<(), Box<Mismatch>> {
    if expected.get("not_compared") == Some(&Value::Bool(true)) {
        return Ok(());
    }
    let refused = expected.get("error").is_some_and(|error| error != &Value::Bool(false));
    let mut got = match answer {
        Ok(fields) if !refused => fields,
        Err(_) if refused => Map::from_iter([("error".to_owned(), expected["error"].clone())]),
        Ok(_) => return Err(differs(at, json!("a refusal"), json!("done"))),
        Err(why) => return Err(differs(at, json!("done"), json!(format!("refused: {why}")))),
    };
    if let Some(want) = expected.get("state") {
        same_keys(&format!("{at}: state"), want, &state)?;
    }
    got.insert("state".into(), state);
    compare(at, expected, &Value::Object(got))
}

/// Object keys in the state must be equal in both directions: an extra entry is a difference too.
fn same_keys(at: &str, want: &Value, have: &Value) -> Result<(), Box<Mismatch>> {
    let maps = want.as_object().into_iter().flatten().filter(|(_, value)| value.is_object());
    for (name, value) in maps {
        let keys = |value: Option<&Value>| {
            let keys = value.and_then(Value::as_object).map(|map| map.keys().cloned().collect::<Vec<_>>());
            let mut keys = keys.unwrap_or_default();
            keys.sort_unstable();
            keys
        };
        let (want, have) = (keys(Some(value)), keys(have.get(name)));
        if want != have {
            return Err(differs(&format!("{at}.{name}"), json!(want), json!(have)));
        }
    }
    Ok(())
}

fn differs(at: &str, expected: Value, got: Value) -> Box<Mismatch> {
    Box::new(Mismatch { at: at.to_owned(), expected, got })
}
