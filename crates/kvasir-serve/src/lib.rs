//! HTTP and JSON: requests in, answers out, and everything that only clients care about.
//!
//! Nothing here knows a kernel or a slot.
#![forbid(unsafe_code)]

pub mod answer;
mod aside;
mod call;
mod clients;
mod error;
mod folded;
pub mod form;
pub mod host;
pub mod http;
mod kept;
mod mail;
pub mod metrics;
pub mod model;
mod pulse;
mod raw_arguments;
pub mod report;
pub mod request;
pub mod session;
mod tool_grammars;
mod watch;

pub use call::Call;
pub use error::ApiError;
pub use watch::{Sight, Sights, Watch};
