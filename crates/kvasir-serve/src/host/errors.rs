//! Maps the engine's refusals and failures to API errors.

use crate::error::ApiError;
use kvasir_engine::{Fault, Finish, Refusal};

/// Maps the engine's refusal to an API error.
pub(crate) fn refused(refusal: Refusal) -> ApiError {
    let why = refusal.to_string();
    match refusal {
        Refusal::EmptyPrompt => ApiError::param("prompt", "the prompt has no token"),
        Refusal::WithinPrefix { .. } => ApiError::param("prompt", why),
        Refusal::TooLong { .. } | Refusal::NeverFits { .. } | Refusal::OverBudget { .. } => {
            ApiError::too_long("messages", why)
        }
        Refusal::NoState => ApiError::param("model", why),
        Refusal::QueueFull { .. } => ApiError::too_many(why),
        Refusal::BadParameter(which) => ApiError::param(which.name(), why),
        _ => ApiError::failed(why),
    }
}

/// No request can be served any more.
pub(crate) fn stopped() -> ApiError {
    ApiError::unavailable("the engine has stopped")
}

/// The client left too much of an answer unread; its connection is closed.
pub(crate) fn read_too_slowly() -> ApiError {
    ApiError::unavailable("the answer was read too slowly and has been aborted")
}

/// Maps a finish to an API error; `None` if the answer ended normally.
pub fn failure(finish: Finish) -> Option<ApiError> {
    match finish {
        Finish::Refused(refusal) => Some(refused(refusal)),
        // The grammar is the client's.
        Finish::Failed(fault @ Fault::Constraint) => {
            Some(ApiError { code: Some("invalid_value"), ..ApiError::body(fault.to_string()) })
        }
        Finish::Failed(fault @ Fault::MessageSize) => {
            Some(ApiError { code: Some("too_large"), ..ApiError::body(fault.to_string()) })
        }
        Finish::Failed(fault @ Fault::NotFinite) => Some(ApiError::failed(fault.to_string())),
        Finish::Failed(fault) => {
            Some(ApiError::failed(format!("the step that ran this request failed ({fault:?})")))
        }
        // Clients that left read no error: any other was cut off by the shutdown.
        Finish::Aborted => {
            Some(ApiError::unavailable("the server is stopping and has cut this answer; send it again"))
        }
        _ => None,
    }
}
