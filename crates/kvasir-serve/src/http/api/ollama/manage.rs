//! Ollama's requests that change the models: `/api/pull`, `/api/create`, `/api/copy`, `/api/push` and
//! `/api/delete`.
//!
//! One model is served as long as the server runs. A request whose result already holds succeeds;
//! the error of any other says what to do instead.

use crate::error::ApiError;
use crate::http::access::api_keys::SeesAll;
use crate::http::api::ollama::models::check_model;
use crate::http::api::ollama::pull;
use crate::http::app::App;
use crate::http::body::{ContentTypes, read_body_as};
use crate::report::level::Level;
use crate::request::body::Body;
use crate::request::field::Field;
use crate::request::fields::{OLLAMA_COPY, OLLAMA_CREATE, OLLAMA_DELETE, OLLAMA_PULL, OLLAMA_PUSH};
use crate::request::ollama::models::{OllamaCopy, OllamaModel};
use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};
use std::sync::Arc;

async fn read(app: &App, request: Request, table: &'static [Field]) -> Result<Body, ApiError> {
    Ok(read_body_as(ContentTypes::Any, app, request, table).await?.1)
}

/// `POST /api/pull`: with `--allow-pull`, fetches a model into the hub's cache. The served model
/// does not change.
pub(crate) async fn pull(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let sees_all = request.extensions().get::<SeesAll>().is_some_and(|sees| sees.0);
    let body = read(&app, request, OLLAMA_PULL).await?;
    let OllamaModel { model, stream, .. } = OllamaModel::pull(&body.reader())?;
    drop(body);
    if app.model_names().accepts(&model) {
        return Ok(pull::already_present(stream));
    }
    if app.fetcher.is_allowed() && !sees_all && app.access.keys.has_admin() {
        return Err(ApiError::forbidden("only an admin's key may fetch models"));
    }
    let reports = app.host.reports().clone();
    let fetch = app.fetcher.start(model.clone(), move |result| match result {
        Ok(name) => reports.send_server(Level::Info, &format!("fetched {name} for a client"), Vec::new()),
        Err(error) => reports.send_server(
            Level::Warn,
            &format!("fetching a model for a client failed: {error}"),
            Vec::new(),
        ),
    });
    let fetch = fetch.ok_or_else(|| {
        let own = &app.model.name;
        ApiError::forbidden(format!(
            "this server serves `{own}` and may not fetch other models: start it with --allow-pull, or run `kvasir pull {model}` on its machine"
        ))
    })?;
    pull::progress(fetch?, stream).await
}

/// `POST /api/create`: succeeds if it changes nothing: the served model under a name that it has.
pub(crate) async fn create(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = read(&app, request, OLLAMA_CREATE).await?;
    let OllamaModel { model, stream, from } = OllamaModel::create(&body.reader())?;
    drop(body);
    check_model(&app, from.as_deref())?;
    require_name(&app, "model", &model)?;
    Ok(pull::already_present(stream))
}

/// `POST /api/copy`: succeeds if the served model has the new name already.
pub(crate) async fn copy(State(app): State<Arc<App>>, request: Request) -> Result<StatusCode, ApiError> {
    let body = read(&app, request, OLLAMA_COPY).await?;
    let OllamaCopy { source, destination } = OllamaCopy::read(&body.reader())?;
    check_model(&app, Some(&source))?;
    require_name(&app, "destination", &destination)?;
    Ok(StatusCode::OK)
}

/// `POST /api/push`.
pub(crate) async fn push(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = read(&app, request, OLLAMA_PUSH).await?;
    check_model(&app, Some(&OllamaModel::push(&body.reader())?.model))?;
    Err(ApiError::not_offered("uploading is not offered; `hf upload` uploads a model to the hub"))
}

/// `DELETE /api/delete`.
pub(crate) async fn delete(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = read(&app, request, OLLAMA_DELETE).await?;
    let OllamaModel { model, .. } = OllamaModel::delete(&body.reader())?;
    check_model(&app, Some(&model))?;
    let why = format!(
        "`{model}` is being served; stop the server, then delete the model's files (`kvasir models --json` lists their path)"
    );
    Err(ApiError::conflict("model", why))
}

/// Requires that the served model has this name.
fn require_name(app: &App, param: &str, name: &str) -> Result<(), ApiError> {
    if app.model_names().accepts(name) {
        return Ok(());
    }
    let own = &app.model.name;
    let why =
        format!("this server serves `{own}` only; `kvasir serve … --model-name {name}` gives it that name");
    Err(ApiError::param(param, why))
}
