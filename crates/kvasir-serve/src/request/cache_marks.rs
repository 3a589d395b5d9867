//! Anthropic's `cache_control`: marks of prompt prefixes whose K/V outlives unmarked K/V.
//!
//! A mark covers the message of its block and all before it. One of a tool or of the system prompt
//! covers tools and system prompt, which templates render together.

use crate::error::ApiError;
use crate::request::reader::Reader;
use serde_json::Value;
use std::time::Duration;

/// A prefix of a conversation to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheMark {
    /// Number of messages that it covers, with the tools.
    pub messages: usize,
    /// How long it is kept after its last use.
    pub ttl: Duration,
}

/// The marks of a request, of each ttl the longest prefix.
#[derive(Clone, Debug, Default)]
pub(super) struct CacheMarks(Vec<CacheMark>);

impl CacheMarks {
    /// Adds the marks of the blocks in a list, and of those in results of calls. They cover
    /// `messages` messages. Marks come in the order of the prompt.
    pub(super) fn add(&mut self, reader: &Reader, field: &str, messages: usize) -> Result<(), ApiError> {
        let Some(Value::Array(blocks)) = reader.get(field) else { return Ok(()) };
        for (i, block) in blocks.iter().enumerate().filter(|(_, block)| block.is_object()) {
            let block = reader.item(field, i, block)?;
            self.add(&block, "content", messages)?;
            self.add_own(&block, messages)?;
        }
        Ok(())
    }

    /// Adds the mark of one block, or of the whole request.
    pub(super) fn add_own(&mut self, block: &Reader, messages: usize) -> Result<(), ApiError> {
        let Some(control) = block.object("cache_control")? else { return Ok(()) };
        control.only(&["type", "ttl", "scope"])?;
        if control.text("type")? != Some("ephemeral") {
            return Err(control.error("type", "must be ephemeral"));
        }
        let minutes = match control.text("ttl")? {
            None | Some("5m") => 5,
            Some("1h") => 60,
            Some(_) => return Err(control.error("ttl", "must be 5m or 1h")),
        };
        let ttl = Duration::from_secs(60 * minutes);
        self.0.retain(|mark| mark.ttl != ttl);
        self.0.push(CacheMark { messages, ttl });
        Ok(())
    }

    /// All marks. One that another covers for longer is left out.
    pub(super) fn take(self) -> Vec<CacheMark> {
        let Self(all) = self;
        let is_covered = |mark: &CacheMark| {
            all.iter().any(|other| other.ttl > mark.ttl && other.messages >= mark.messages)
        };
        all.iter().filter(|mark| !is_covered(mark)).copied().collect()
    }
}
