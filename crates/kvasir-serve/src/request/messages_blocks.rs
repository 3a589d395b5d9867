//! Content blocks of Anthropic's messages: their known fields, and their text as the model reads
//! it.

use crate::error::ApiError;
use crate::request::media::{MediaParts, result_note, unknown_part};
use crate::request::reader::Reader;
use serde_json::Value;

/// Maximum messages per request, and blocks per message.
pub(super) const MAX_MESSAGES: usize = 4096;

/// A string, or the concatenation of text blocks.
pub(super) fn text_of(reader: &Reader, field: &str, place: &mut Place) -> Result<Option<String>, ApiError> {
    match reader.get(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => {
            let mut text = String::new();
            for block in blocks(reader, field)? {
                match block.text("type")? {
                    Some("text") => text.push_str(block.need_text("text")?),
                    Some("tool_reference") if place.is_result() => {
                        text.push_str(block.need_text("tool_name")?);
                    }
                    Some("search_result") if place.is_result() => text.push_str(&search_result(&block)?),
                    Some("document") if place.is_result() => text.push_str(&document(&block, place)?),
                    kind => text.push_str(&place.replace(&block, kind)?),
                }
            }
            Ok(Some(text))
        }
    }
}

/// Where blocks occur, which decides how images and documents are replaced.
pub(super) enum Place<'a> {
    Message(&'a mut MediaParts),
    /// The result of a call.
    Result,
}

impl Place<'_> {
    fn is_result(&self) -> bool {
        matches!(self, Self::Result)
    }

    /// The text that replaces a media block.
    fn replace(&mut self, block: &Reader, kind: Option<&str>) -> Result<String, ApiError> {
        match self {
            Self::Message(media) => media.replace(block, kind),
            Self::Result => result_note(block, kind),
        }
    }
}

/// Index of the newest message of the user that holds other blocks than results of calls.
pub(super) fn newest_user(body: &Reader) -> Option<usize> {
    let is_result = |block: &Value| block["type"] == "tool_result";
    let is_own = |message: &Value| match &message["content"] {
        Value::Array(blocks) => !blocks.iter().all(is_result),
        _ => true,
    };
    let messages = body.get("messages").and_then(Value::as_array)?;
    messages.iter().rposition(|message| message["role"] == "user" && is_own(message))
}

/// Whether a block belongs to a tool that the provider runs: a call or its result.
fn is_of_server_tool(kind: &str) -> bool {
    matches!(kind, "server_tool_use" | "mcp_tool_use" | "container_upload") || kind.ends_with("_tool_result")
}

/// The blocks of a message or a result. Blocks of tools that the provider runs carry nothing for
/// the model: they are recorded as ignored and left out.
pub(super) fn blocks<'a>(reader: &Reader<'a>, field: &str) -> Result<Vec<Reader<'a>>, ApiError> {
    let items = reader.list(field, MAX_MESSAGES)?.unwrap_or(&[]).iter().enumerate();
    let block = |(i, item): (usize, &'a Value)| {
        let block = match reader.item(field, i, item) {
            Ok(block) => block,
            Err(error) => return Some(Err(error)),
        };
        match block.text("type") {
            Ok(Some(kind)) if is_of_server_tool(kind) => {
                block.ignore(kind);
                None
            }
            _ => Some(known_block(block)),
        }
    };
    items.filter_map(block).collect()
}

/// Checks type and fields of a block.
fn known_block<'a>(block: Reader<'a>) -> Result<Reader<'a>, ApiError> {
    let own: &[&str] = match block.text("type")? {
        Some("text") => &["text"],
        Some("thinking") => &["thinking", "signature"],
        Some("redacted_thinking") => &["data"],
        Some("tool_use") => &["id", "name", "input", "caller"],
        Some("tool_result") => &["tool_use_id", "content", "is_error"],
        Some("tool_reference") => &["tool_name"],
        Some("document") => &["source", "title", "context"],
        Some("search_result") => &["source", "title", "content"],
        Some("image") => &["source"],
        _ => return Err(unknown_part(&block)),
    };
    // Cache and citation markers do not change the content.
    block.only(&[own, &["type", "cache_control", "citations"]].concat())?;
    Ok(block)
}

/// The text of a plain text document with its title and context, or the replacement of another
/// document.
pub(super) fn document(block: &Reader, place: &mut Place) -> Result<String, ApiError> {
    let Some(source) = block.object("source")? else { return place.replace(block, Some("document")) };
    let text = match source.text("type")? {
        Some("text") => {
            source.only(&["type", "media_type", "data"])?;
            if !matches!(source.text("media_type")?, None | Some("text/plain")) {
                return Err(source.error("media_type", "must be text/plain in a source of text"));
            }
            source.need_text("data")?.to_owned()
        }
        Some("content") => {
            source.only(&["type", "content"])?;
            text_of(&source, "content", place)?.unwrap_or_default()
        }
        _ => return place.replace(block, Some("document")),
    };
    let mut out = String::from("<document>\n");
    for name in ["title", "context"] {
        if let Some(text) = block.text(name)? {
            out.push_str(&format!("<{name}>{text}</{name}>\n"));
        }
    }
    out.push_str(&format!("{text}\n</document>\n"));
    Ok(out)
}

/// The text of a search result with its title and source.
pub(super) fn search_result(block: &Reader) -> Result<String, ApiError> {
    let (title, source) = (block.need_text("title")?, block.need_text("source")?);
    let text = text_of(block, "content", &mut Place::Result)?.unwrap_or_default();
    Ok(format!(
        "<search_result>\n<title>{title}</title>\n<source>{source}</source>\n{text}\n</search_result>\n"
    ))
}
