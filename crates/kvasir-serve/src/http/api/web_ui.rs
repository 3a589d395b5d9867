//! Serves the embedded web UI under a strict Content-Security-Policy.

use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

/// The page may run its own scripts and contact its own server only. Style attributes come from
/// drawing code alone; model output is escaped before it becomes HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Path, content type and text of each file.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("../../page/index.html")),
    ("/page/icon.svg", "image/svg+xml", include_str!("../../page/icon.svg")),
    ("/page/style.css", CSS, include_str!("../../page/style.css")),
    ("/page/text.css", CSS, include_str!("../../page/text.css")),
    ("/page/answering.js", SCRIPT, include_str!("../../page/answering.js")),
    ("/page/api.js", SCRIPT, include_str!("../../page/api.js")),
    ("/page/attachments.js", SCRIPT, include_str!("../../page/attachments.js")),
    ("/page/branch.js", SCRIPT, include_str!("../../page/branch.js")),
    ("/page/chat.js", SCRIPT, include_str!("../../page/chat.js")),
    ("/page/clipboard.js", SCRIPT, include_str!("../../page/clipboard.js")),
    ("/page/completion.js", SCRIPT, include_str!("../../page/completion.js")),
    ("/page/conversation.js", SCRIPT, include_str!("../../page/conversation.js")),
    ("/page/conversations.js", SCRIPT, include_str!("../../page/conversations.js")),
    ("/page/emphasis.js", SCRIPT, include_str!("../../page/emphasis.js")),
    ("/page/engine.js", SCRIPT, include_str!("../../page/engine.js")),
    ("/page/fence.js", SCRIPT, include_str!("../../page/fence.js")),
    ("/page/fences.js", SCRIPT, include_str!("../../page/fences.js")),
    ("/page/fleet.js", SCRIPT, include_str!("../../page/fleet.js")),
    ("/page/focus.js", SCRIPT, include_str!("../../page/focus.js")),
    ("/page/footnotes.js", SCRIPT, include_str!("../../page/footnotes.js")),
    ("/page/formula.js", SCRIPT, include_str!("../../page/formula.js")),
    ("/page/gauge.js", SCRIPT, include_str!("../../page/gauge.js")),
    ("/page/highlight.js", SCRIPT, include_str!("../../page/highlight.js")),
    ("/page/hyperlinks.js", SCRIPT, include_str!("../../page/hyperlinks.js")),
    ("/page/icons.js", SCRIPT, include_str!("../../page/icons.js")),
    ("/page/indent.js", SCRIPT, include_str!("../../page/indent.js")),
    ("/page/inline.js", SCRIPT, include_str!("../../page/inline.js")),
    ("/page/key_dialog.js", SCRIPT, include_str!("../../page/key_dialog.js")),
    ("/page/languages.js", SCRIPT, include_str!("../../page/languages.js")),
    ("/page/link.js", SCRIPT, include_str!("../../page/link.js")),
    ("/page/main.js", SCRIPT, include_str!("../../page/main.js")),
    ("/page/markdown.js", SCRIPT, include_str!("../../page/markdown.js")),
    ("/page/math.js", SCRIPT, include_str!("../../page/math.js")),
    ("/page/message.js", SCRIPT, include_str!("../../page/message.js")),
    ("/page/model.js", SCRIPT, include_str!("../../page/model.js")),
    ("/page/morph.js", SCRIPT, include_str!("../../page/morph.js")),
    ("/page/overflow.js", SCRIPT, include_str!("../../page/overflow.js")),
    ("/page/references.js", SCRIPT, include_str!("../../page/references.js")),
    ("/page/response_events.js", SCRIPT, include_str!("../../page/response_events.js")),
    ("/page/response_request.js", SCRIPT, include_str!("../../page/response_request.js")),
    ("/page/responses.js", SCRIPT, include_str!("../../page/responses.js")),
    ("/page/scan.js", SCRIPT, include_str!("../../page/scan.js")),
    ("/page/sessions.js", SCRIPT, include_str!("../../page/sessions.js")),
    ("/page/setting_fields.js", SCRIPT, include_str!("../../page/setting_fields.js")),
    ("/page/settings.js", SCRIPT, include_str!("../../page/settings.js")),
    ("/page/shortcuts.js", SCRIPT, include_str!("../../page/shortcuts.js")),
    ("/page/sidebar.js", SCRIPT, include_str!("../../page/sidebar.js")),
    ("/page/storage.js", SCRIPT, include_str!("../../page/storage.js")),
    ("/page/store.js", SCRIPT, include_str!("../../page/store.js")),
    ("/page/tabs.js", SCRIPT, include_str!("../../page/tabs.js")),
    ("/page/theme.js", SCRIPT, include_str!("../../page/theme.js")),
    ("/page/toast.js", SCRIPT, include_str!("../../page/toast.js")),
    ("/page/token_tip.js", SCRIPT, include_str!("../../page/token_tip.js")),
    ("/page/tools.js", SCRIPT, include_str!("../../page/tools.js")),
    ("/page/transcript.js", SCRIPT, include_str!("../../page/transcript.js")),
    ("/page/tree.js", SCRIPT, include_str!("../../page/tree.js")),
    ("/page/truncation.js", SCRIPT, include_str!("../../page/truncation.js")),
    ("/page/typed_call.js", SCRIPT, include_str!("../../page/typed_call.js")),
];

/// Routes of the web UI. It needs no key itself and holds nothing secret.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let files = FILES.iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(async move || file(kind, *text)))
    });
    files
        .route("/page/view.css", get(async || file(CSS, kvasir_view::STYLE)))
        .route("/page/view.js", get(async || file(SCRIPT, kvasir_view::script())))
}

fn file(kind: &'static str, text: impl IntoResponse) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // The page changes with the server's version.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (StatusCode::OK, headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_defer_reason_has_words_in_the_viewer() {
        // The error of an unknown variant lists all variants.
        let error = serde_json::from_str::<kvasir_engine::DeferReason>("\"?\"").unwrap_err().to_string();
        let names: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
        assert!(names.contains(&"behind") && names.contains(&"others_paused"), "{error}");
        let script = kvasir_view::script();
        for name in names {
            assert!(script.contains(&format!("\n  {name}: ")), "words.js lacks `{name}`");
        }
    }

    #[test]
    fn web_ui_refers_to_its_own_files_only() {
        let held = |path: &str| {
            FILES.iter().any(|(file, ..)| *file == path)
                || ["/page/view.css", "/page/view.js", "/page/math"].contains(&path)
        };
        for (name, _, text) in FILES {
            for quote in ['"', '\''] {
                for part in text.split(&format!("{quote}/page/")).skip(1) {
                    let path = format!("/page/{}", part.split(quote).next().unwrap());
                    assert!(held(&path), "{name} names {path}");
                }
            }
            for elsewhere in
                ["src=\"http", "href=\"http", "@import", "url(", "eval(", "onclick=", " style=\"color"]
            {
                assert!(!text.contains(elsewhere), "{name} has {elsewhere}");
            }
        }
    }
}
