//! Events that the server reports: ended and answered requests, ignored fields, loosened schemas.

use crate::context::call::Call;
use kvasir_engine::Summary;
use std::{
    sync::{Arc, mpsc::SyncSender},
    time::SystemTime,
};

/// A report.
#[derive(Clone, Debug)]
pub enum Told {
    /// The engine has ended a request.
    Ended {
        /// Its context.
        call: Arc<Call>,
        /// The outcome.
        summary: Summary,
        /// Time of the event.
        at: SystemTime,
    },
    /// An HTTP request has been answered.
    Answered {
        /// Its context.
        call: Arc<Call>,
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
        call: Arc<Call>,
        /// Names of the fields.
        names: Vec<String>,
        /// Time of the event.
        at: SystemTime,
    },
    /// Tool schemas that cannot be compiled: arguments of these tools may be any object.
    Loosened {
        /// Context of the request.
        call: Arc<Call>,
        /// Paths of the schemas in the request.
        schemas: Vec<String>,
        /// Time of the event.
        at: SystemTime,
    },
    /// Flush marker: dropped once all earlier reports are written.
    Flush(SyncSender<()>),
}
