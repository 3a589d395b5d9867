//! Parts of messages: the fields of a part of text, and parts that are no text.

use crate::error::ApiError;
use crate::request::reader::Reader;

/// Fields of a part of text. Markers of caches, citations and log-probabilities do not change the
/// content; clients send the parts of an answer back with them.
pub(crate) const TEXT_PART: &[&str] =
    &["type", "text", "annotations", "citations", "logprobs", "cache_control", "index"];

/// The note that takes the place of a part that is no text in the result of a call, so that the
/// conversation continues. The part is recorded as ignored.
pub(crate) fn omission_note(part: &Reader, kind: &str) -> String {
    part.ignore(kind);
    format!("[{} left out]", kind.trim_start_matches("input_"))
}

/// The error for a content part that is not text.
pub(crate) fn unsupported_part(part: &Reader, kind: Option<&str>) -> ApiError {
    const MEDIA: &[&str] = &[
        "image_url",
        "input_image",
        "image",
        "input_audio",
        "audio",
        "video_url",
        "input_file",
        "file",
        "document",
    ];
    match kind {
        Some(kind) if MEDIA.contains(&kind) => {
            part.error("type", format!("is `{kind}`; the engine reads text, no media"))
        }
        _ => part.error("type", "must be one that this endpoint reads"),
    }
}
