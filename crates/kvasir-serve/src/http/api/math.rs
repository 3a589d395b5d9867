//! `POST /page/math`: LaTeX formulas to MathML Core, which browsers render themselves.
//!
//! Formulas come from model output. Three bounds keep a hostile one from harming the process:
//!
//! - The parser recurses per command and per open brace. Their number is limited, and the
//!   conversion runs on a thread whose stack holds that depth.
//! - Conversions are heavy jobs of the work pool, which bounds how many such stacks are in memory.
//! - No macro can be defined, so that output is linear in the input.
//!
//! The page sanitizes the result (`page/math.js`).

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::http::app::App;
use crate::http::body::read_body;
use crate::request::fields::MATH;
use crate::request::reader::Reader;
use crate::work_pool::fair_queue::Cost;
use axum::{Json, extract::Request, extract::State};
use math_core::{LatexToMathML, MathCoreConfig, MathDisplay};
use serde_json::{Value, json};
use std::{
    sync::{Arc, atomic::Ordering},
    thread,
};

/// Maximum formulas per request.
const MAX_FORMULAS: usize = 256;
/// Maximum length of a formula in bytes.
const MAX_BYTES: usize = 8 << 10;
/// Maximum number of commands and braces of a formula, a bound on the parser's recursion.
const MAX_DEPTH: usize = 1024;
/// Stack per level of recursion. An unoptimized build takes up to 32 KiB.
const STACK_PER_LEVEL: usize = 96 << 10;

/// Commands that `math-core` lacks and models write often.
const MACROS: &[(&str, &str)] = &[
    ("boxed", r"\begin{array}{|c|}\hline #1\\\hline\end{array}"),
    ("mathbbm", r"\mathbb{#1}"),
    ("substack", r"\begin{matrix}#1\end{matrix}"),
    ("tag", r"\qquad(\mathrm{#1})"),
];

struct Formula {
    latex: String,
    display: MathDisplay,
}

/// `{"items": [{"latex", "display"?}]}` → `{"data": [{"mathml"} | {"error"}]}`, in order.
pub(crate) async fn math(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (_, body) = read_body(&app, request, MATH).await?;
    let data = app.run_work(Cost::Exclusive, move |_| {
        let formulas = read(&body.reader())?;
        drop(body);
        convert_all(&formulas)
    });
    Ok(Json(json!({"data": data.await?})))
}

fn read(body: &Reader) -> Result<Vec<Formula>, ApiError> {
    body.classify(MATH)?;
    let items = body.list("items", MAX_FORMULAS)?.ok_or_else(|| body.error("items", "is missing"))?;
    let formula = |(index, item)| {
        let item = body.item("items", index, item)?;
        let display = if item.flag("display", false)? { MathDisplay::Block } else { MathDisplay::Inline };
        Ok(Formula { latex: item.need_text("latex")?.to_owned(), display })
    };
    items.iter().enumerate().map(formula).collect()
}

fn convert_all(formulas: &[Formula]) -> Result<Vec<Value>, ApiError> {
    let canceled = RequestContext::current().gone.clone();
    let failed = || ApiError::unavailable("no memory for the conversion");
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("math".into()).stack_size(MAX_DEPTH * STACK_PER_LEVEL);
        let work = || {
            let converter = converter();
            let runs = |_: &&Formula| !canceled.load(Ordering::Relaxed);
            formulas.iter().take_while(runs).map(|formula| convert(&converter, formula)).collect()
        };
        builder.spawn_scoped(scope, work).map_err(|_| failed())?.join().map_err(|_| failed())
    })
}

fn converter() -> LatexToMathML {
    let macros = MACROS.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    // A test checks that the macros parse.
    LatexToMathML::new(MathCoreConfig { macros, ..MathCoreConfig::default() }).unwrap_or_default()
}

fn convert(converter: &LatexToMathML, Formula { latex, display }: &Formula) -> Value {
    if latex.len() > MAX_BYTES
        || latex.bytes().filter(|byte| matches!(byte, b'\\' | b'{')).count() > MAX_DEPTH
    {
        return json!({"error": "the formula is too long"});
    }
    if names_hold_markup(latex) {
        return json!({"error": r"a name in `\operatorname` must not hold `<`, `>` or `&`"});
    }
    match converter.convert_with_local_state(latex, *display) {
        Ok(converted) => json!({"mathml": converted.mathml}),
        Err(error) => json!({"error": error.to_string()}),
    }
}

/// Whether the argument of an `\operatorname` holds a character of markup: `math-core` writes these
/// arguments as they are, and escapes all other text.
fn names_hold_markup(latex: &str) -> bool {
    latex.split(r"\operatorname").skip(1).any(|behind| {
        let argument = behind.trim_start_matches("withlimits").trim_start_matches('*').trim_start();
        let mut depth = 0_usize;
        // Through the closing brace, or one character; to the end of a formula that lacks the brace.
        argument
            .chars()
            .scan(false, |is_over, c| {
                match c {
                    '{' => depth += 1,
                    '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                (!std::mem::replace(is_over, depth == 0)).then_some(c)
            })
            .any(|c| matches!(c, '<' | '>' | '&'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(latex: &str) -> Value {
        let formula = Formula { latex: latex.into(), display: MathDisplay::Block };
        convert_all(&[formula]).unwrap().remove(0)
    }

    #[test]
    fn formulas_become_mathml() {
        let expected = "<math display=\"block\"><mfrac><mi>a</mi><mn>2</mn></mfrac></math>";
        assert_eq!(converted(r"\frac{a}{2}"), json!({"mathml": expected}));
        for (name, _) in MACROS {
            let latex = format!(r"\{name}{{4}}");
            assert!(converted(&latex)["mathml"].is_string(), "{latex}: {}", converted(&latex));
        }
        assert!(converted(r"\href{javascript:alert(1)}{x}")["error"].is_string());
        let text = converted(r"\text{<script>}")["mathml"].to_string();
        assert!(text.contains("&lt;script&gt;") && !text.contains("<script"), "{text}");
    }

    #[test]
    fn operator_names_hold_no_markup() {
        for hostile in [
            r"\operatorname{<img src=x onerror=alert(1)>}",
            r"\operatorname*{a{<b>}}",
            r"\operatornamewithlimits { & }",
            r"x\operatorname <",
            r"\boxed{\operatorname{\text{<b>}}}",
        ] {
            let text = converted(hostile).to_string();
            assert!(text.contains("must not hold"), "{hostile}: {text}");
        }
        for fine in [r"\operatorname{arg\,max}_{a<b} x", r"\operatorname*{lim} a > b", r"\operatorname a < b"]
        {
            assert!(converted(fine)["mathml"].is_string(), "{fine}: {}", converted(fine));
        }
    }

    #[test]
    fn hostile_formulas_fit_the_stack() {
        let units = [
            "{",
            r"\sqrt",
            r"\bar",
            r"\left(",
            r"\begin{a}",
            r"\frac1",
            r"\boxed",
            r"\sqrt[",
            r"\text{",
            r"\substack{",
        ];
        for unit in units {
            let commands = unit.bytes().filter(|byte| matches!(byte, b'\\' | b'{')).count();
            let latex = unit.repeat((MAX_DEPTH / commands).min(MAX_BYTES / unit.len()));
            assert!(converted(&latex)["mathml"].is_string() || converted(&latex)["error"].is_string());
        }
        for unit in ["^", "_", "a^", "&", "$", "(", "[", "'", "%", "~", "}", "a_^"] {
            converted(&unit.repeat(MAX_BYTES / unit.len()));
        }
        assert_eq!(converted(&"{".repeat(MAX_DEPTH + 1))["error"], "the formula is too long");
    }
}
