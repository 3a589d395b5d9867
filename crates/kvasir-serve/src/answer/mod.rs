//! Output parsing: turns generated text into answers, incrementally: stop sequences, reasoning,
//! tool calls.
//!
//! Each stage takes text as it is generated, and emits only what no later text can change.
//! Invariant: the concatenated output does not depend on how the text is split into pieces.
//!
//! Entry points: [`Choice`] runs the stages for one choice, [`ToolDialect`] and
//! [`ReasoningDialect`] describe model families, [`Items`] groups deltas into items, and
//! [`Scanner`] triggers constrained tool calls.

mod call_layout;
mod call_parts;
mod call_start;
mod calls;
mod choice;
mod dialect;
mod events;
mod harmony;
mod hold;
mod items;
mod json_calls;
mod json_text;
mod markers;
mod python;
mod pythonic_calls;
mod reasoning;
mod reasoning_dialect;
mod schema;
mod stop;
mod tagged_calls;

pub(crate) use call_parts::takes_objects;
pub use call_start::{Bare, CallSyntax, Next, Opened, Scanner};
pub use calls::Calls;
pub use choice::{Choice, Reading};
pub use dialect::ToolDialect;
pub use events::{CallEvent, Delta};
use harmony::Harmony;
pub use items::{Item, ItemEvent, ItemKind, Items};
pub use reasoning::{Part, Reasoning};
pub use reasoning_dialect::ReasoningDialect;
pub use stop::StopFilter;
