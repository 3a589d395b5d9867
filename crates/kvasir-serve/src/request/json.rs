use crate::ApiError;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::{cell::Cell, fmt};

/// Values and keys that one body may have.
const MAX_NODES: u32 = 2_000_000;

/// Parses a JSON object. Refused are bodies that are not JSON, too deep (serde_json's 128 levels), that have too many
/// values, or name a key twice: with two values for one name nobody can tell which one was meant.
pub fn parse_body(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let value = Budget::default().parse(bytes);
    match value.map_err(|e| ApiError::body(format!("the body is no valid JSON: {e}")))? {
        Value::Object(map) => Ok(map),
        _ => Err(ApiError::body("the body must be a JSON object")),
    }
}

/// Values and keys that may yet come, in one text or in several of one body.
pub(super) struct Budget(Cell<u32>);

impl Default for Budget {
    fn default() -> Self {
        Self(Cell::new(MAX_NODES))
    }
}

impl Budget {
    /// Parses a JSON text as strictly as a body.
    pub(super) fn parse(&self, bytes: &[u8]) -> serde_json::Result<Value> {
        let mut source = serde_json::Deserializer::from_slice(bytes);
        let value = Node(&self.0).deserialize(&mut source)?;
        source.end()?;
        Ok(value)
    }
}

struct Node<'a>(&'a Cell<u32>);

impl Node<'_> {
    fn spend<E: Error>(&self) -> Result<(), E> {
        let left =
            self.0.get().checked_sub(1).ok_or_else(|| E::custom(format!("more than {MAX_NODES} values")))?;
        self.0.set(left);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        self.spend()?;
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number that is not finite"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(Node(self.0))? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key_seed(Key)? {
            let value = map.next_value_seed(Node(self.0))?;
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("key `{key}` stands twice")));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<String, D::Error> {
        String::deserialize(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse_body(text.as_bytes()).unwrap_err().message
    }

    #[test]
    fn plain_objects_pass() {
        let map =
            parse_body(br#"{"a": [1, -2, 0.5, true, null, "x"], "b": {"c": 18446744073709551615}}"#).unwrap();
        assert_eq!(map["a"][1], -2);
        assert_eq!(map["b"]["c"], u64::MAX);
    }

    #[test]
    fn hostile_bodies_are_refused() {
        assert!(refused(r#"{"a": 1, "a": 2}"#).contains("`a` stands twice"));
        assert!(refused("[1]").contains("object"));
        assert!(refused(r#"{"a": NaN}"#).contains("JSON"));
        assert!(refused(r#"{"a": 1e999}"#).contains("JSON"));
        assert!(refused(r#"{"a": "\ud800"}"#).contains("JSON"));
        assert!(
            refused(&format!("{{\"a\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000))).contains("JSON")
        );
        assert!(refused("{\"a\": 1} x").contains("JSON"));
        assert!(refused("\u{feff}{}").contains("JSON"));
        assert!(refused("").contains("JSON"));
        assert!(parse_body(b"{\"a\": \"\xc0\xaf\"}").is_err());
    }
}
