//! Parses `/v1/conversations` requests: create, update, and add items.

use crate::error::ApiError;
use crate::request::fields::{CONVERSATION, CONVERSATION_ITEMS, CONVERSATIONS};
use crate::request::reader::Reader;
use crate::request::responses::{MAX_ITEMS, check_metadata};
use serde_json::{Value, json};

/// A validated `POST /v1/conversations`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConversationRequest {
    /// The client's own fields.
    pub(crate) metadata: Value,
    /// Its first items.
    pub(crate) items: Vec<Value>,
}

impl ConversationRequest {
    /// Parses and validates a body.
    pub(crate) fn read(body: &Reader) -> Result<Self, ApiError> {
        body.classify(CONVERSATIONS)?;
        Ok(Self { metadata: metadata(body)?, items: items(body)? })
    }
}

/// The new metadata of `POST /v1/conversations/ID`.
pub(crate) fn read_update(body: &Reader) -> Result<Value, ApiError> {
    body.classify(CONVERSATION)?;
    body.need("metadata")?;
    metadata(body)
}

/// The items of `POST /v1/conversations/ID/items`.
pub(crate) fn read_items(body: &Reader) -> Result<Vec<Value>, ApiError> {
    body.classify(CONVERSATION_ITEMS)?;
    body.need("items")?;
    items(body)
}

fn metadata(body: &Reader) -> Result<Value, ApiError> {
    check_metadata(body)?;
    Ok(body.get("metadata").cloned().unwrap_or_else(|| json!({})))
}

/// Checks that each item is an object with a type, or a message; `/v1/responses` reads the rest.
fn items(body: &Reader) -> Result<Vec<Value>, ApiError> {
    let items = body.list("items", MAX_ITEMS)?.unwrap_or(&[]);
    for (i, item) in items.iter().enumerate() {
        let item = body.item("items", i, item)?;
        item.text("id")?;
        if matches!(item.text("type")?, None | Some("message")) {
            item.need_text("role")?;
            item.need("content")?;
        }
    }
    Ok(items.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::IgnoredFields;

    #[test]
    fn items_and_metadata_are_checked() {
        let read = |body: Value| {
            let ignored = IgnoredFields::default();
            let request = ConversationRequest::read(&Reader::new(body.as_object().unwrap(), &ignored));
            request.map(|request| request.items.len()).map_err(|error| error.param.unwrap())
        };
        let message = json!({"role": "user", "content": "hi"});
        assert_eq!(read(json!({"items": [message, {"type": "compaction"}], "metadata": {"a": "b"}})), Ok(2));
        assert_eq!(read(json!({"items": null})), Ok(0));
        for (body, param) in [
            (json!({"items": {}}), "items"),
            (json!({"items": ["hi"]}), "items[0]"),
            (json!({"items": [{"role": "user"}]}), "items[0].content"),
            (json!({"items": [{"content": "hi"}]}), "items[0].role"),
            (json!({"items": [{"type": "reasoning", "id": 5}]}), "items[0].id"),
            (json!({"metadata": {"a": 5}}), "metadata.a"),
        ] {
            assert_eq!(read(body), Err(param.to_owned()));
        }
    }
}
