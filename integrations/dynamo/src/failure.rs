//! Conversion of errors to `DynamoError`.

use dynamo_backend_common::{BackendError, DynamoError, ErrorType};
use std::fmt::Display;

fn error(kind: BackendError, message: impl Display) -> DynamoError {
    DynamoError::builder().error_type(ErrorType::Backend(kind)).message(message.to_string()).build()
}

/// The request or the configuration is wrong.
pub(crate) fn invalid(message: impl Display) -> DynamoError {
    error(BackendError::InvalidArgument, message)
}

/// The engine or its environment failed.
pub(crate) fn failed(message: impl Display) -> DynamoError {
    error(BackendError::Unknown, message)
}

/// The engine has stopped; another worker can take the request.
pub(crate) fn stopped() -> DynamoError {
    error(BackendError::EngineShutdown, "the engine has stopped")
}
