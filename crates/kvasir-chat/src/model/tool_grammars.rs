//! LRU caches of compiled tool grammars: agents offer the same tools, and request the same response
//! format, in every turn.
//!
//! Fallback: a tool whose schema cannot be compiled takes any object as arguments, unless it is
//! `strict`, which rejects the request.

use crate::dialect::call_parts::takes_objects;
use crate::dialect::tool_calls::ToolDialect;
use crate::grammar::call_grammars::CallGrammars;
use crate::grammar::format_or_calls::{CompiledGrammar, FormatOrCalls};
use crate::grammar::spec::{Part, Shape};
use crate::grammar::vocabulary::{GrammarError, Vocabulary};
use crate::tool::Tool;
use kvasir_kv::Token;
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError, atomic::AtomicBool};

/// Capacity of each cache, in tool sets.
const CACHE_CAPACITY: usize = 32;

/// Compiled grammars by tool set.
#[derive(Debug, Default)]
pub(crate) struct ToolGrammars {
    voluntary: Cache<Arc<CallGrammars>>,
    format_or_calls: Cache<Arc<FormatOrCalls>>,
}

/// Cache entries, most recently used last.
#[derive(Debug)]
struct Cache<T>(Mutex<Vec<(Key, Compiled<T>)>>);

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Cache key: names, schemas and strictness of the tools, whether several calls are allowed, and the
/// response format beside them.
#[derive(Debug)]
struct Key {
    tools: Vec<(String, Option<Value>, bool)>,
    several: bool,
    format: Option<FormatAlternative>,
}

/// A response format as an alternative of calls.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FormatAlternative {
    pub(crate) shape: Shape,
    /// Grammar parts before the formatted text.
    pub(crate) lead: Vec<Part>,
    /// Grammar parts before the calls.
    pub(crate) calls_lead: Vec<Part>,
}

impl Key {
    fn is_of(&self, tools: &[Tool], several: bool, format: Option<&FormatAlternative>) -> bool {
        let is_same = |((name, parameters, strict), tool): (&(String, Option<Value>, bool), &Tool)| {
            *name == tool.name && *strict == tool.strict && *parameters == tool.parameters
        };
        self.several == several
            && self.tools.len() == tools.len()
            && self.tools.iter().zip(tools).all(is_same)
            && self.format.as_ref() == format
    }
}

/// Compiled grammars of a tool set.
#[derive(Clone, Debug)]
pub(crate) struct Compiled<T> {
    /// `None` if calls cannot be constrained at all, as for models without an end-of-sequence
    /// token.
    pub(crate) grammars: Option<T>,
    /// Paths of schemas that cannot be compiled; these tools accept any object.
    pub(crate) loosened: Vec<String>,
    /// Whether they were compiled for this request (cache miss).
    pub(crate) is_new: bool,
}

/// A strict tool whose schema cannot be compiled.
#[derive(Debug)]
pub(crate) struct StrictToolError {
    /// Path of its schema in the request.
    pub(crate) schema: String,
    pub(crate) why: GrammarError,
}

/// Why calls beside a response format cannot be constrained.
#[derive(Debug)]
pub(crate) enum FormatOrCallsError {
    Format(GrammarError),
    Tool(StrictToolError),
}

/// Inputs of compilation besides the tools.
pub(crate) struct Compiler<'a> {
    pub(crate) vocabulary: &'a Vocabulary,
    pub(crate) dialect: ToolDialect,
    /// Control tokens that detokenization keeps.
    pub(crate) control_tokens: &'a [(Token, String)],
    /// Setting it cancels the request and its compilations.
    pub(crate) canceled: &'a Arc<AtomicBool>,
}

impl ToolGrammars {
    /// Returns cached grammars of voluntary calls of these tools, or compiles them. With `several`, an
    /// answer may hold more than one call.
    pub(crate) fn get_or_compile(
        &self,
        compiler: &Compiler<'_>,
        tools: &[Tool],
        several: bool,
    ) -> Result<Compiled<Arc<CallGrammars>>, StrictToolError> {
        if let Some(found) = self.voluntary.find(tools, several, None) {
            return Ok(found);
        }
        let one = |tools: &[&Tool]| {
            let syntax = compiler.dialect.syntax(tools, several);
            let control_tokens = compiler.control_tokens.to_vec();
            compiler.vocabulary.compile_calls(syntax, control_tokens, compiler.canceled).map(Arc::new)
        };
        let compiled = loosen_and_compile(tools, one)?;
        self.voluntary.insert(tools, several, None, &compiled);
        Ok(compiled)
    }

    /// Returns cached grammars of an answer that is either in this format or consists of calls of these
    /// tools, or compiles them.
    pub(crate) fn get_or_compile_format_or_calls(
        &self,
        format: &FormatAlternative,
        compiler: &Compiler<'_>,
        tools: &[Tool],
        several: bool,
    ) -> Result<Compiled<Arc<FormatOrCalls>>, FormatOrCallsError> {
        if let Some(found) = self.format_or_calls.find(tools, several, Some(format)) {
            return Ok(found);
        }
        let vocabulary = compiler.vocabulary;
        let text = vocabulary.compile_alternative(&format.shape, &format.lead, compiler.canceled);
        let text = text.map_err(FormatOrCallsError::Format)?;
        let one = |tools: &[&Tool]| -> Result<(CompiledGrammar, Arc<[String]>), GrammarError> {
            let calls = compiler.dialect.calls_only(tools, several);
            // A message's channel tells what it is.
            let heads = if compiler.dialect == ToolDialect::Harmony { Arc::default() } else { calls.heads() };
            let calls = Shape::Calls(calls);
            Ok((vocabulary.compile_alternative(&calls, &format.calls_lead, compiler.canceled)?, heads))
        };
        let Compiled { grammars, loosened, is_new } =
            loosen_and_compile(tools, one).map_err(FormatOrCallsError::Tool)?;
        let grammars = grammars.map(|(calls, heads)| {
            let control_tokens = compiler.control_tokens.to_vec();
            Arc::new(FormatOrCalls::new(vocabulary, text, calls, heads, control_tokens))
        });
        let compiled = Compiled { grammars, loosened, is_new };
        self.format_or_calls.insert(tools, several, Some(format), &compiled);
        Ok(compiled)
    }
}

impl<T: Clone> Cache<T> {
    fn find(&self, tools: &[Tool], several: bool, format: Option<&FormatAlternative>) -> Option<Compiled<T>> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cached.iter().position(|(key, _)| key.is_of(tools, several, format))?;
        let found = cached.remove(at);
        let compiled = found.1.clone();
        cached.push(found);
        Some(compiled)
    }

    fn insert(
        &self,
        tools: &[Tool],
        several: bool,
        format: Option<&FormatAlternative>,
        compiled: &Compiled<T>,
    ) {
        let of_tool = |tool: &Tool| (tool.name.clone(), tool.parameters.clone(), tool.strict);
        let key = Key { tools: tools.iter().map(of_tool).collect(), several, format: format.cloned() };
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.len() >= CACHE_CAPACITY {
            cached.remove(0);
        }
        cached.push((key, Compiled { is_new: false, ..compiled.clone() }));
    }
}

/// Compiles the grammar of these tools by `compile`; tools whose schemas cannot be compiled take any
/// object, unless they are strict.
fn loosen_and_compile<T>(
    tools: &[Tool],
    compile: impl Fn(&[&Tool]) -> Result<T, GrammarError>,
) -> Result<Compiled<T>, StrictToolError> {
    let grammars = |tools: &[Tool]| {
        if !tools.iter().all(takes_objects) {
            return Err(GrammarError("describes no object".into()));
        }
        compile(&tools.iter().collect::<Vec<_>>())
    };
    let done = |grammars, loosened| Compiled { grammars: Some(grammars), loosened, is_new: true };
    if let Ok(grammars) = grammars(tools) {
        return Ok(done(grammars, Vec::new()));
    }
    let mut tools = tools.to_vec();
    let mut loosened = Vec::new();
    for tool in &mut tools {
        let Err(why) = grammars(std::slice::from_ref(tool)) else { continue };
        if tool.strict {
            return Err(StrictToolError { schema: tool.schema.clone(), why });
        }
        tool.parameters = None;
        loosened.push(tool.schema.clone());
    }
    if let Ok(grammars) = grammars(&tools) {
        return Ok(done(grammars, loosened));
    }
    // Each compiles alone but not all together: they are too large.
    if let Some(tool) = tools.iter().find(|tool| tool.strict) {
        let why = GrammarError("cannot be compiled beside the other tools".into());
        return Err(StrictToolError { schema: tool.schema.clone(), why });
    }
    tools.iter_mut().for_each(|tool| tool.parameters = None);
    let loosened = tools.iter().map(|tool| tool.schema.clone()).collect();
    Ok(Compiled { grammars: grammars(&tools).ok(), loosened, is_new: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_formats::TextFiles;
    use serde_json::json;
    use std::path::Path;

    fn tool(parameters: Value, strict: bool) -> Tool {
        let (source, kind) = (Value::Null, Default::default());
        Tool { name: "f".into(), parameters: Some(parameters), schema: "path".into(), source, strict, kind }
    }

    fn format(key: &str) -> FormatAlternative {
        let schema = json!({"type": "object", "properties": {key: {"type": "boolean"}}});
        FormatAlternative { shape: Shape::JsonSchema(schema), lead: Vec::new(), calls_lead: Vec::new() }
    }

    #[test]
    fn tools_and_format_are_compiled_once() {
        let files =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvasir-formats/tests/data/tokenizers/qwen");
        let tokenizer = Arc::new(TextFiles::open(&files).unwrap().tokenizer().unwrap());
        let vocabulary = Vocabulary::new(tokenizer, 512, &[505]).unwrap();
        let dialect = ToolDialect::Hermes;
        let canceled = Arc::default();
        let compiler =
            Compiler { vocabulary: &vocabulary, dialect, control_tokens: &[], canceled: &canceled };
        let grammars = ToolGrammars::default();
        let get = |format: &FormatAlternative, tools: &[Tool], several: bool| {
            grammars.get_or_compile_format_or_calls(format, &compiler, tools, several)
        };
        let tools = [tool(json!({"type": "object"}), false)];
        let other = [tool(json!({"type": "object", "maxProperties": 1}), false)];
        let behind = FormatAlternative { lead: vec![Part::Gap], ..format("a") };
        let is_new = |format: &FormatAlternative, tools: &[Tool], several: bool| {
            get(format, tools, several).unwrap().is_new
        };
        for new in [true, false] {
            assert_eq!(is_new(&format("a"), &tools, true), new);
            assert_eq!(is_new(&format("b"), &tools, true), new);
            assert_eq!(is_new(&format("a"), &other, true), new);
            assert_eq!(is_new(&format("a"), &tools, false), new);
            assert_eq!(is_new(&behind, &tools, true), new);
            assert_eq!(grammars.get_or_compile(&compiler, &tools, true).unwrap().is_new, new);
        }
        let broken =
            |strict| [tool(json!({"type": "object", "properties": {"a": {"type": "none"}}}), strict)];
        let loosened = get(&format("a"), &broken(false), true).unwrap();
        assert!(loosened.grammars.is_some() && loosened.loosened == ["path"]);
        let refused = get(&format("a"), &broken(true), true).unwrap_err();
        assert!(
            matches!(refused, FormatOrCallsError::Tool(StrictToolError { schema, .. }) if schema == "path")
        );
        let nothing = FormatAlternative { shape: Shape::Choice(Vec::new()), ..format("a") };
        assert!(matches!(get(&nothing, &tools, true).unwrap_err(), FormatOrCallsError::Format(_)));
    }
}
