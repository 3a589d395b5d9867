//! Output parsing: turns generated text into answers, incrementally: stop sequences, reasoning,
//! tool calls.
//!
//! Each stage takes text as it is generated, and emits only what no later text can change.
//! Invariant: the concatenated output does not depend on how the text is split into pieces.
//!
//! Entry points: [`Choice`] runs the stages for one choice, [`Items`] groups deltas into items.
//!
//! Knows no engine and no API; builds on `scan`, `grammar`, `dialect` and the tools of a `request`.

pub(crate) mod buffered_calls;
pub(crate) mod call_constraint;
mod call_machine;
pub(crate) mod calls;
pub(crate) mod choice;
pub(crate) mod events;
pub(crate) mod harmony;
pub(crate) mod items;
pub(crate) mod json_calls;
pub(crate) mod reasoning;
pub(crate) mod stop_sequences;
pub(crate) mod tagged_calls;

pub use crate::answer::call_constraint::CallConstraint;
pub use crate::answer::calls::ToolCallParser;
pub use crate::answer::choice::{Choice, ParseOptions};
pub use crate::answer::events::{CallEvent, Delta};
pub use crate::answer::items::{Item, ItemEvent, ItemKind, Items};
pub use crate::answer::reasoning::{Reasoning, ReasoningPart};
pub use crate::answer::stop_sequences::StopFilter;
pub use crate::grammar::call_scanner::{CallScanner, CallStart, CallSyntax, NextObject, Unmarked};
