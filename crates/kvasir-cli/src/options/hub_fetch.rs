//! Models of the hub by name: parses the name, and fetches one for a client of the server.

use kvasir::{FetchProgress, HubName, OpenedModel, ShortNames};
use kvasir_serve::{ApiError, http::FetchedFile};

/// Parses a hub name or a short name. The error names the form of a hub name and the most similar
/// short name.
pub(crate) fn hub_name(text: &str) -> Result<HubName, String> {
    HubName::named(text).ok_or_else(|| {
        let nearest = ShortNames::nearest(text).map(|known| format!("; similar: `{known}`"));
        let nearest = nearest.unwrap_or_default();
        format!("{text} is no hub name{nearest}; give OWNER/NAME[@REVISION][:TAG]")
    })
}

/// Fetches a model for a client of the server, unless it is here, and checks that it can be run.
/// Returns its hub name.
pub(crate) fn fetch_model(text: &str, report: &mut dyn FnMut(FetchedFile)) -> Result<String, ApiError> {
    // Ollama's clients append the tag to names without one.
    let stripped = text.strip_suffix(":latest").filter(|name| name.contains('/'));
    let name = hub_name(stripped.unwrap_or(text)).map_err(|why| ApiError::param("model", why))?;
    let failed = |error: kvasir::Error| match error {
        error @ kvasir::Error::InvalidArgument { .. } => ApiError::param("model", error.to_string()),
        error => ApiError::failed(error.to_string()),
    };
    let path = name.find_with_progress(&mut |FetchProgress { file, sha256, total, completed, .. }| {
        report(FetchedFile { name: file.to_owned(), sha256: sha256.map(str::to_owned), total, completed });
    });
    OpenedModel::open(&path.map_err(failed)?).map_err(failed)?;
    Ok(name.to_string())
}
