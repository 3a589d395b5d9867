//! Media parts of messages: images, audio, video and files.
//!
//! Models read text. A media part in the newest message of the user is refused, since the question
//! concerns it. In earlier messages and in results of calls, a note replaces it and the part is
//! recorded as ignored, so that a conversation that another model began can continue.

use crate::error::ApiError;
use crate::request::reader::Reader;

/// Types of media parts, in all APIs.
const TYPES: &[&str] = &[
    "image_url",
    "input_image",
    "image",
    "input_audio",
    "audio",
    "audio_url",
    "video_url",
    "video",
    "input_file",
    "file",
    "document",
];

/// A media part of the newest message of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadMedia {
    param: String,
    noun: String,
}

impl UnreadMedia {
    /// The error that refuses the request; it names the model.
    pub(crate) fn refusal(&self, model: &str) -> ApiError {
        let Self { param, noun } = self;
        // Claude Code removes images and documents from its conversation when it reads these words.
        let why = match noun.as_str() {
            "document" => format!("the model `{model}` reads text only and does not support PDF input"),
            noun => format!("could not process {noun}, since the model `{model}` reads text only"),
        };
        ApiError::param(param, format!("`{param}`: {why}"))
    }
}

/// Replaces the media parts of a conversation by notes.
#[derive(Debug, Default)]
pub(crate) struct MediaParts {
    /// Index of the newest message of the user.
    newest: Option<usize>,
    /// Index of the message that is being read.
    current: Option<usize>,
    unread: Option<UnreadMedia>,
}

impl MediaParts {
    /// `newest` is the index of the newest message of the user.
    pub(super) fn new(newest: Option<usize>) -> Self {
        Self { newest, ..Self::default() }
    }

    /// Begins a message, to which the parts of the next calls belong.
    pub(super) fn enter(&mut self, message: usize) {
        self.current = Some(message);
    }

    /// The text that replaces a part of the message. Fails if `kind` is not a media type.
    pub(super) fn replace(&mut self, part: &Reader, kind: Option<&str>) -> Result<String, ApiError> {
        match kind.filter(|kind| TYPES.contains(kind)) {
            Some(kind) => Ok(self.replacement(part, "type", kind, kind)),
            None => Err(unknown_part(part)),
        }
    }

    /// The text that replaces the `count` images of a field of the message.
    pub(super) fn replace_images(&mut self, message: &Reader, field: &str, count: usize) -> String {
        (0..count).map(|_| self.replacement(message, field, field, "image")).collect()
    }

    fn replacement(&mut self, reader: &Reader, param: &str, ignored: &str, kind: &str) -> String {
        if self.current.is_none() || self.current != self.newest {
            reader.ignore(ignored);
            return omission(kind);
        }
        let new = || UnreadMedia { param: reader.name(param), noun: noun(kind).to_owned() };
        self.unread.get_or_insert_with(new);
        String::new()
    }

    /// The first media part for which the request is refused.
    pub(super) fn unread(self) -> Option<UnreadMedia> {
        self.unread
    }
}

/// The text that replaces a part of the result of a call. Fails if `kind` is not a media type.
pub(super) fn result_note(part: &Reader, kind: Option<&str>) -> Result<String, ApiError> {
    MediaParts::default().replace(part, kind)
}

/// The error for a content part of a type that the endpoint does not know.
pub(super) fn unknown_part(part: &Reader) -> ApiError {
    part.error("type", "must be one that this endpoint reads")
}

fn omission(kind: &str) -> String {
    format!("[{} omitted: this model reads text]", noun(kind))
}

fn noun(kind: &str) -> &str {
    let noun = kind.trim_start_matches("input_");
    noun.strip_suffix("_url").unwrap_or(noun)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::IgnoredFields;
    use serde_json::json;

    #[test]
    fn only_the_newest_message_of_the_user_is_refused() {
        let ignored = IgnoredFields::default();
        let part = json!({"type": "input_image"});
        let root = Reader::new(part.as_object().unwrap(), &ignored);
        let part = root.at(part.as_object().unwrap(), "input[2].content[0]");
        let mut media = MediaParts::new(Some(2));
        let note = "[image omitted: this model reads text]";
        for (message, expected) in [(1, note), (2, ""), (3, note)] {
            media.enter(message);
            assert_eq!(media.replace(&part, Some("input_image")).unwrap(), expected);
        }
        assert_eq!(ignored.names(), ["input[].content[].input_image"]);
        let refusal = media.unread().unwrap().refusal("tiny");
        assert_eq!((refusal.status, refusal.param.as_deref()), (400, Some("input[2].content[0].type")));
        assert!(refusal.message.contains("could not process image, since the model `tiny` reads text only"));
        assert!(MediaParts::default().replace(&part, Some("hologram")).is_err());
    }
}
