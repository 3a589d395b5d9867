//! JSON parser for request bodies with a memory budget (untrusted input).
//!
//! The endpoint's field table decides which fields are stored. Values of other fields, and of
//! unknown lists and objects in messages, are syntax-checked and skipped. Each stored value is
//! charged an estimate of its heap size before the next is read, so many small objects cannot
//! exceed the budget unnoticed.
//!
//! Rejected: invalid JSON, nesting beyond serde_json's 128 levels, more than [`MAX_PARSED`] once
//! parsed, and duplicate keys.

use crate::context::ignored_fields::IgnoredFields;
use crate::error::ApiError;
use crate::memory_budget::{BODIES, HeldMemory};
use crate::request::field::{Class, Field};
use crate::request::reader::Reader;
use crate::work_pool::fair_queue::Cost;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::{
    cell::{Cell, RefCell},
    fmt,
};

/// Maximum heap size of one parsed body in bytes, by the estimate below.
const MAX_PARSED: usize = 128 << 20;

// Estimated heap bytes: a value in its list or object, an object's first table, a list's first
// block, and a key or string beside its bytes. Measured with serde_json's ordered maps; estimates
// err on the high side.
const VALUE: usize = 80;
const OBJECT: usize = 480;
const LIST: usize = 256;
const TEXT: usize = 32;

/// Heap bytes of a value, by the same estimate.
pub(crate) fn heap_bytes(value: &Value) -> usize {
    VALUE
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => TEXT + text.len(),
            Value::Array(items) => LIST + items.iter().map(heap_bytes).sum::<usize>(),
            Value::Object(map) => {
                let entries = map.iter().map(|(key, value)| TEXT + key.len() + heap_bytes(value));
                OBJECT + entries.sum::<usize>()
            }
        }
}

/// A parsed body, with its share of the memory budget.
#[derive(Debug)]
pub struct Body {
    /// Stored fields.
    pub fields: Map<String, Value>,
    /// Names of ignored fields.
    pub ignored: IgnoredFields,
    memory: HeldMemory,
    /// Size before parsing, in bytes.
    size: usize,
}

/// Fields whose values are compiled (grammars, schemas, patterns) or searched for in the whole
/// vocabulary (texts).
const COMPILED: [&str; 16] = [
    "dry_sequence_breakers",
    "ebnf",
    "format",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "json_schema",
    "output_config",
    "output_format",
    "regex",
    "response_format",
    "stop_regex",
    "structured_outputs",
    "text",
];
/// Size in bytes from which a body is heavy work.
const HEAVY_BODY: usize = 1 << 20;

impl Default for Body {
    fn default() -> Self {
        Self { fields: Map::new(), ignored: IgnoredFields::default(), memory: BODIES.hold(), size: 0 }
    }
}

impl Body {
    /// Parses the body of an endpoint with this field table.
    pub fn parse(bytes: &[u8], table: &'static [Field], ignored: IgnoredFields) -> Result<Self, ApiError> {
        let budget = ParseBudget::default();
        let parsed = budget.run(bytes, Scope::Body(table, &ignored));
        let value = parsed.map_err(|error| match budget.refusal.take() {
            Some(refusal) => refusal,
            None => ApiError::body(format!("the body is no valid JSON: {error}")),
        })?;
        match value {
            Value::Object(fields) => {
                Ok(Self { fields, ignored, memory: budget.memory.into_inner(), size: bytes.len() })
            }
            _ => Err(ApiError::body("the body must be a JSON object")),
        }
    }

    /// A reader over the stored fields.
    pub fn reader(&self) -> Reader<'_> {
        Reader::new(&self.fields, &self.ignored)
    }

    /// Cost class of the request work for this body.
    pub(crate) fn cost(&self) -> Cost {
        let has = |name: &str| self.fields.get(name).is_some_and(|value| !value.is_null());
        match () {
            () if has("chat_template") => Cost::Exclusive,
            () if self.size >= HEAVY_BODY || COMPILED.into_iter().any(has) => Cost::Heavy,
            () => Cost::Light,
        }
    }

    /// Drops the body. The result charges `bytes` of heap, which the caller keeps of it.
    pub(crate) fn keep(self, bytes: usize) -> HeldMemory {
        let mut memory = self.memory;
        memory.shrink_to(bytes);
        memory
    }
}

/// Charges parsed values against [`MAX_PARSED`] and the shared budget of all bodies.
pub(crate) struct ParseBudget {
    used: Cell<usize>,
    granted: Cell<usize>,
    memory: RefCell<HeldMemory>,
    /// Why parsing was aborted, if not for a syntax error.
    refusal: RefCell<Option<ApiError>>,
}

impl Default for ParseBudget {
    fn default() -> Self {
        let memory = RefCell::new(BODIES.hold());
        Self { used: Cell::default(), granted: Cell::default(), memory, refusal: RefCell::default() }
    }
}

/// Granularity of the grant from the shared budget, in bytes.
const GRANT: usize = 256 << 10;

impl ParseBudget {
    /// Parses a JSON text nested in a body.
    pub(super) fn parse(&self, bytes: &[u8]) -> serde_json::Result<Value> {
        self.run(bytes, Scope::Value)
    }

    /// Parses tool call arguments as written by a model: an object, else the text verbatim. Empty
    /// text is an empty object.
    pub(super) fn arguments(&self, text: &str) -> Value {
        match self.parse(text.as_bytes()) {
            Ok(Value::Object(map)) => Value::Object(map),
            _ if text.trim().is_empty() => Value::Object(Map::new()),
            _ => text.into(),
        }
    }

    fn run(&self, bytes: &[u8], scope: Scope) -> serde_json::Result<Value> {
        let mut source = serde_json::Deserializer::from_slice(bytes);
        let value = Node { budget: self, scope }.deserialize(&mut source)?;
        source.end()?;
        Ok(value.unwrap_or_default())
    }

    fn charge<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let used = self.used.get().saturating_add(bytes);
        self.used.set(used);
        if used <= self.granted.get() {
            return Ok(());
        }
        if used > MAX_PARSED {
            return Err(self.refuse(ApiError::body("the body has too many values")));
        }
        let granted = used.next_multiple_of(GRANT);
        self.memory.borrow_mut().grow_to(granted).map_err(|full| self.refuse(full))?;
        self.granted.set(granted);
        Ok(())
    }

    /// Aborts parsing with an API error.
    fn refuse<E: Error>(&self, why: ApiError) -> E {
        let error = E::custom(&why);
        *self.refusal.borrow_mut() = Some(why);
        error
    }
}

/// Position of a value in its endpoint's schema.
#[derive(Clone, Copy)]
enum Scope<'a> {
    /// The body itself: fields are stored by the table.
    Body(&'static [Field], &'a IgnoredFields),
    /// A list of objects with these known fields.
    Items(&'static str, &'static [&'static str], &'a IgnoredFields),
    /// An item of such a list. Its unknown fields are stored only if scalar, for chat templates.
    Item(&'static str, &'static [&'static str], &'a IgnoredFields),
    /// An unknown field of an item: stored if scalar, skipped if a list or object.
    Scalar,
    /// Any other value, stored whole.
    Value,
}

/// Deserializer of one value; `None` if it is skipped.
#[derive(Clone, Copy)]
struct Node<'a> {
    budget: &'a ParseBudget,
    scope: Scope<'a>,
}

impl<'a> Node<'a> {
    fn inner(&self, scope: Scope<'a>) -> Self {
        Self { budget: self.budget, scope }
    }

    /// The value of `key`; `None` if it is skipped.
    fn field<'de, A: MapAccess<'de>>(&self, key: &str, map: &mut A) -> Result<Option<Value>, A::Error> {
        match self.scope {
            Scope::Body(table, ignored) => match table.iter().find(|field| field.name == key) {
                Some(Field { class: Class::Ignored(_), .. }) => skip(map),
                Some(Field { items: Some(own), name, .. }) => {
                    map.next_value_seed(self.inner(Scope::Items(name, own, ignored)))
                }
                Some(_) => map.next_value_seed(self.inner(Scope::Value)),
                None => {
                    ignored.unknown(key).map_err(|error| self.budget.refuse(error))?;
                    skip(map)
                }
            },
            Scope::Item(list, own, ignored) if !own.contains(&key) => {
                let value = map.next_value_seed(self.inner(Scope::Scalar))?;
                if value.as_ref().is_none_or(|value| !value.is_null()) {
                    let path = format!("{list}[].{key}");
                    ignored.unknown(&path).map_err(|error| self.budget.refuse(error))?;
                }
                Ok(value)
            }
            _ => map.next_value_seed(self.inner(Scope::Value)),
        }
    }
}

fn skip<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<Value>, A::Error> {
    map.next_value::<IgnoredAny>().map(|_| None)
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Option<Value>, D::Error> {
        self.budget.charge(VALUE)?;
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Option<Value>, E> {
        Ok(Some(Value::Null))
    }
    fn visit_bool<E>(self, value: bool) -> Result<Option<Value>, E> {
        Ok(Some(Value::Bool(value)))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Option<Value>, E> {
        Ok(Some(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Option<Value>, E> {
        Ok(Some(value.into()))
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Option<Value>, E> {
        let number = Number::from_f64(value).map(Value::Number);
        number.map(Some).ok_or_else(|| E::custom("a number that is not finite"))
    }
    fn visit_str<E: Error>(self, value: &str) -> Result<Option<Value>, E> {
        self.budget.charge(TEXT + value.len())?;
        Ok(Some(value.into()))
    }
    fn visit_string<E: Error>(self, value: String) -> Result<Option<Value>, E> {
        self.budget.charge(TEXT + value.len())?;
        Ok(Some(value.into()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Option<Value>, A::Error> {
        let inner = match self.scope {
            Scope::Scalar => return IgnoredAny.visit_seq(list).map(|_| None),
            Scope::Items(name, own, ignored) => self.inner(Scope::Item(name, own, ignored)),
            _ => self.inner(Scope::Value),
        };
        self.budget.charge(LIST)?;
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(inner)? {
            items.extend(item);
        }
        // Long lists are charged by length, so their growth slack is freed.
        if items.len() > 64 {
            items.shrink_to_fit();
        }
        Ok(Some(Value::Array(items)))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<Value>, A::Error> {
        if let Scope::Scalar = self.scope {
            return IgnoredAny.visit_map(map).map(|_| None);
        }
        self.budget.charge(OBJECT)?;
        let mut object = Map::new();
        let mut skipped: Vec<String> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) || skipped.contains(&key) {
                return Err(A::Error::custom(format!("key `{key}` occurs twice")));
            }
            self.budget.charge(TEXT + key.len())?;
            match self.field(&key, &mut map)? {
                Some(value) => {
                    object.insert(key, value);
                }
                // Duplicate detection among skipped keys is bounded: skipped fields must cost no
                // memory.
                None if skipped.len() < 64 => skipped.push(key),
                None => {}
            }
        }
        Ok(Some(Value::Object(object)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::UnknownFields;
    use crate::request::fields::{CHAT, DETOKENIZE, TOKENIZE};
    use serde_json::json;

    fn parse(text: &str) -> Result<Body, ApiError> {
        Body::parse(text.as_bytes(), CHAT, IgnoredFields::default())
    }

    fn refused(text: &str) -> String {
        parse(text).unwrap_err().message
    }

    #[test]
    fn known_fields_are_stored_whole() {
        let tools = r#"[{"a": [1, -2, 0.5, true, null, "x"], "b": {"c": 18446744073709551615}}]"#;
        let body = parse(&format!(r#"{{"tools": {tools}, "stream": true}}"#)).unwrap();
        assert_eq!(body.fields["tools"], serde_json::from_str::<Value>(tools).unwrap());
        assert_eq!(body.fields["stream"], true);
        assert!(body.ignored.names().is_empty());
    }

    #[test]
    fn hostile_bodies_are_refused() {
        assert!(refused(r#"{"model": 1, "model": 2}"#).contains("`model` occurs twice"));
        assert!(refused(r#"{"a": 1, "a": 2}"#).contains("`a` occurs twice"));
        assert!(refused("[1]").contains("object"));
        assert!(refused(r#"{"tools": NaN}"#).contains("JSON"));
        assert!(refused(r#"{"tools": 1e999}"#).contains("JSON"));
        assert!(refused(r#"{"tools": "\ud800"}"#).contains("JSON"));
        let deep = |field: &str| format!("{{\"{field}\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(refused(&deep("tools")).contains("JSON"));
        assert!(parse(&deep("junk")).unwrap().fields.is_empty(), "skipped without recursion");
        assert!(refused("{\"stream\": 1} x").contains("JSON"));
        assert!(refused("{\"junk\": [1,}").contains("JSON"));
        assert!(refused("\u{feff}{}").contains("JSON"));
        assert!(refused("").contains("JSON"));
        assert!(Body::parse(b"{\"tools\": \"\xc0\xaf\"}", CHAT, IgnoredFields::default()).is_err());
    }

    #[test]
    fn values_count_what_their_parsing_was_charged() {
        for text in [r#"{"tools": [{"a": [1, null, "x"]}, {}], "stream": true}"#, "[[], 0.5]", "\"text\""] {
            let budget = ParseBudget::default();
            let value = budget.parse(text.as_bytes()).unwrap();
            assert_eq!(heap_bytes(&value), budget.used.get(), "{text}");
        }
    }

    #[test]
    fn unknown_fields_are_named_and_not_stored() {
        let body = parse(
            r#"{"junk": [{"a": 1}], "user": {"x": [1]}, "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi", "extra": 1}], "note": "kept", "junk": [[]]},
                {"role": "user", "content": "x", "junk": {"a": {}}, "nothing": null}]}"#,
        );
        let body = body.unwrap();
        assert_eq!(body.ignored.names(), ["junk", "messages[].note", "messages[].junk"]);
        assert_eq!(body.fields.keys().collect::<Vec<_>>(), ["messages"]);
        let first =
            json!({"role": "user", "content": [{"type": "text", "text": "hi", "extra": 1}], "note": "kept"});
        assert_eq!(body.fields["messages"][0], first);
        let rule = IgnoredFields::default().with_rule(UnknownFields::Refuse);
        for (text, param) in [
            (r#"{"junk": 1}"#, "junk"),
            (r#"{"messages": [{"role": "user", "content": "x", "junk": []}]}"#, "messages[].junk"),
        ] {
            let error = Body::parse(text.as_bytes(), CHAT, rule.clone()).unwrap_err();
            assert_eq!((error.param.as_deref(), error.code), (Some(param), Some("unknown_parameter")));
        }
    }

    #[test]
    fn many_small_values_are_refused_before_they_are_stored() {
        let objects = |n: usize| vec![r#"{"a":1}"#; n].join(",");
        let body = parse(&format!(r#"{{"tools": [{}]}}"#, objects(990_000)));
        let error = body.unwrap_err();
        assert_eq!((error.status, error.message.contains("too many values")), (400, true));
        // The same values in a skipped field cost nothing.
        let junk = format!(
            r#"{{"messages": [{{"role": "user", "content": "x", "junk": [{}]}}]}}"#,
            objects(990_000)
        );
        parse(&junk).unwrap();
        // The endpoints' own limits fit: a million token ids, one text of maximum body size.
        let ids = format!(r#"{{"tokens": [{}1]}}"#, "1,".repeat((1 << 20) - 1));
        Body::parse(ids.as_bytes(), DETOKENIZE, IgnoredFields::default()).unwrap();
        let text = format!(r#"{{"prompt": "{}"}}"#, "x".repeat(32 << 20));
        Body::parse(text.as_bytes(), TOKENIZE, IgnoredFields::default()).unwrap();
    }
}
