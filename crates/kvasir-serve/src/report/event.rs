//! Events that the server reports: ended and answered requests, ignored fields, clamped limits,
//! loosened schemas, and its own start and end.

use crate::context::clamped_limit::ClampedLimit;
use crate::context::request_context::RequestContext;
use crate::report::level::Level;
use kvasir_engine::Summary;
use serde_json::Value;
use std::{
    sync::{Arc, mpsc::SyncSender},
    time::SystemTime,
};

/// A report.
#[derive(Clone, Debug)]
pub enum ReportEvent {
    /// The engine has ended a request.
    Ended {
        /// Its context.
        context: Arc<RequestContext>,
        /// The outcome.
        summary: Summary,
        /// Time of the event.
        at: SystemTime,
    },
    /// An HTTP request has been answered.
    Answered {
        /// Its context.
        context: Arc<RequestContext>,
        /// HTTP status.
        status: u16,
        /// Microseconds until the response head.
        micros: u64,
        /// Time of the event.
        at: SystemTime,
    },
    /// Ignored fields of a request, named for the first time.
    Ignored {
        /// Its context.
        context: Arc<RequestContext>,
        /// Names of the fields.
        names: Vec<String>,
        /// Time of the event.
        at: SystemTime,
    },
    /// A maximum beyond the context, which was clamped.
    Clamped {
        /// Context of the request.
        context: Arc<RequestContext>,
        /// The maximum.
        limit: ClampedLimit,
        /// Time of the event.
        at: SystemTime,
    },
    /// Tool schemas that cannot be compiled: arguments of these tools may be any object.
    Loosened {
        /// Context of the request.
        context: Arc<RequestContext>,
        /// Paths of the schemas in the request.
        schemas: Vec<String>,
        /// Time of the event.
        at: SystemTime,
    },
    /// The server itself: started, draining, stopped, reloaded.
    Server {
        /// Severity.
        level: Level,
        /// What happened, in one line.
        message: String,
        /// Figures, by name.
        fields: Vec<(&'static str, Value)>,
        /// Time of the event.
        at: SystemTime,
    },
    /// Flush marker: dropped once all earlier reports are written.
    Flush(SyncSender<()>),
}
