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
    }
}

/// Maps a finish to an API error; `None` if the answer ended normally.
pub fn failure(finish: Finish) -> Option<ApiError> {
    let message = finish.to_string();
    match finish {
        Finish::Refused(refusal) => Some(refused(refusal)),
        Finish::Failed(fault @ (Fault::Constraint | Fault::NotFinite)) => {
            Some(ApiError::failed(fault.to_string()))
        }
        Finish::Failed(fault) => {
            Some(ApiError::failed(format!("the step that ran this request failed ({fault:?})")))
        }
        Finish::Aborted => Some(ApiError::unavailable(message)),
        _ => None,
    }
}
