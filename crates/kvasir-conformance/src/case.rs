//! The recorded case format `kvasir-conformance/1`: suites, cases, and their errors.

use crate::compare::expand_ranges;
use serde_json::{Map, Value};
use std::{fmt, sync::Arc};

/// A malformed case or file: one line with the reason, and the case id if known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseError {
    case: Option<String>,
    why: String,
}

impl CaseError {
    /// An error about the whole file.
    fn of_file(why: impl Into<String>) -> Self {
        Self { case: None, why: why.into() }
    }

    /// The reason without the case id.
    pub(super) fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.case {
            Some(id) => write!(f, "case {id}: {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

impl std::error::Error for CaseError {}

/// One recorded case, with its `{"range": [a, b]}` values expanded.
#[derive(Clone, Debug)]
pub struct Case {
    /// Case id, unique within its suite.
    pub id: String,
    /// Case kind; selects the runner.
    pub kind: String,
    /// All other fields of the case.
    pub body: Map<String, Value>,
    /// The file's `meta` object, shared by all its cases.
    pub meta: Arc<Value>,
}

impl Case {
    /// A required field of the case.
    pub fn field(&self, name: &str) -> Result<&Value, CaseError> {
        self.body.get(name).ok_or_else(|| self.error(format!("field `{name}` is missing")))
    }

    /// The required field `given.NAME`.
    pub fn given(&self, name: &str) -> Result<&Value, CaseError> {
        let given = self.field("given")?;
        given.get(name).ok_or_else(|| self.error(format!("field `given.{name}` is missing")))
    }

    /// Creates an error about this case.
    pub fn error(&self, why: impl Into<String>) -> CaseError {
        CaseError { case: Some(self.id.clone()), why: why.into() }
    }
}

/// Upper bound on the numbers that all ranges of a file may expand to; protects memory.
const MOST_NUMBERS: u64 = 1 << 24;

/// A parsed case file.
#[derive(Clone, Debug)]
pub struct Suite {
    /// Suite name.
    pub name: String,
    /// Cases in file order.
    pub cases: Vec<Case>,
}

impl Suite {
    /// Parses `{"format": "kvasir-conformance/1", ..}` and expands ranges. Any malformed case fails
    /// the file.
    pub fn parse(text: &str) -> Result<Self, CaseError> {
        let bad = |why: String| CaseError::of_file(why);
        let mut file: Value = serde_json::from_str(text).map_err(|e| bad(format!("not JSON: {e}")))?;
        match file.get("format") {
            Some(format) if format == "kvasir-conformance/1" => {}
            Some(other) => {
                return Err(bad(format!("format {other} is not known, only \"kvasir-conformance/1\"")));
            }
            None => return Err(bad("field `format` is missing".into())),
        }
        let name = file.get("suite").and_then(Value::as_str).unwrap_or_default().to_owned();
        let meta = Arc::new(file.get("meta").cloned().unwrap_or_default());
        let Some(Value::Array(cases)) = file.get_mut("cases").map(Value::take) else {
            return Err(bad("field `cases` must be a list".into()));
        };
        let mut numbers = MOST_NUMBERS;
        let cases = cases.into_iter().enumerate().map(|(i, case)| {
            let Value::Object(mut body) =
                expand_ranges(case, &mut numbers).map_err(|why| bad(format!("case {i}: {why}")))?
            else {
                return Err(bad(format!("case {i} is not an object")));
            };
            let mut text = |key: &str| match body.remove(key) {
                Some(Value::String(text)) if !text.contains(char::is_control) => Ok(text),
                _ => Err(bad(format!("case {i}: field `{key}` must be a line of text"))),
            };
            Ok(Case { id: text("id")?, kind: text("kind")?, body, meta: meta.clone() })
        });
        Ok(Self { name, cases: cases.collect::<Result<_, _>>()? })
    }
}
