//! LRU cache of compiled tool grammars: agents offer the same tools in every turn.
//!
//! Fallback: a tool whose schema cannot be compiled takes any object as arguments, unless it is
//! `strict`, which rejects the request.

use crate::dialect::call_parts::takes_objects;
use crate::dialect::tool_calls::ToolDialect;
use crate::grammar::call_grammars::CallGrammars;
use crate::grammar::vocabulary::{GrammarError, Vocabulary};
use crate::request::tools::Tool;
use kvasir_kv::Token;
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};

/// Capacity of the cache, in tool sets.
const CACHE_CAPACITY: usize = 32;

/// Compiled grammars by tool set, most recently used last.
#[derive(Debug, Default)]
pub(crate) struct ToolGrammars(Mutex<Vec<(Key, Compiled)>>);

/// Cache key: names, schemas and strictness of the tools, and whether several calls are allowed.
#[derive(Debug)]
struct Key {
    tools: Vec<(String, Option<Value>, bool)>,
    several: bool,
}

impl Key {
    fn is_of(&self, tools: &[Tool], several: bool) -> bool {
        let is_same = |((name, parameters, strict), tool): (&(String, Option<Value>, bool), &Tool)| {
            *name == tool.name && *strict == tool.strict && *parameters == tool.parameters
        };
        self.several == several
            && self.tools.len() == tools.len()
            && self.tools.iter().zip(tools).all(is_same)
    }
}

/// Compiled grammars of a tool set.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    /// `None` if calls cannot be constrained at all, as for models without an end-of-sequence
    /// token.
    pub(crate) grammars: Option<Arc<CallGrammars>>,
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

/// Inputs of compilation besides the tools.
pub(crate) struct Compiler<'a> {
    pub(crate) vocabulary: &'a Vocabulary,
    pub(crate) dialect: ToolDialect,
    /// Control tokens that detokenization keeps.
    pub(crate) control_tokens: &'a [(Token, String)],
}

impl ToolGrammars {
    /// Returns cached grammars of these tools, or compiles them. With `several`, an answer may hold
    /// more than one call.
    pub(crate) fn get_or_compile(
        &self,
        compiler: &Compiler<'_>,
        tools: &[Tool],
        several: bool,
    ) -> Result<Compiled, StrictToolError> {
        if let Some(found) = self.find(tools, several) {
            return Ok(found);
        }
        let compiled = compiler.compile(tools, several)?;
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.len() >= CACHE_CAPACITY {
            cached.remove(0);
        }
        let of_tool = |tool: &Tool| (tool.name.clone(), tool.parameters.clone(), tool.strict);
        let key = Key { tools: tools.iter().map(of_tool).collect(), several };
        cached.push((key, Compiled { is_new: false, ..compiled.clone() }));
        Ok(compiled)
    }

    fn find(&self, tools: &[Tool], several: bool) -> Option<Compiled> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cached.iter().position(|(key, _)| key.is_of(tools, several))?;
        let found = cached.remove(at);
        let compiled = found.1.clone();
        cached.push(found);
        Some(compiled)
    }
}

impl Compiler<'_> {
    fn compile(&self, tools: &[Tool], several: bool) -> Result<Compiled, StrictToolError> {
        let done =
            |grammars, loosened| Compiled { grammars: Some(Arc::new(grammars)), loosened, is_new: true };
        if let Ok(grammars) = self.grammars(tools, several) {
            return Ok(done(grammars, Vec::new()));
        }
        let mut tools = tools.to_vec();
        let mut loosened = Vec::new();
        for tool in &mut tools {
            let Err(why) = self.grammars(std::slice::from_ref(tool), several) else { continue };
            if tool.strict {
                return Err(StrictToolError { schema: tool.schema.clone(), why });
            }
            tool.parameters = None;
            loosened.push(tool.schema.clone());
        }
        if let Ok(grammars) = self.grammars(&tools, several) {
            return Ok(done(grammars, loosened));
        }
        // Each compiles alone but not all together: they are too large.
        if let Some(tool) = tools.iter().find(|tool| tool.strict) {
            let why = GrammarError("cannot be compiled beside the other tools".into());
            return Err(StrictToolError { schema: tool.schema.clone(), why });
        }
        tools.iter_mut().for_each(|tool| tool.parameters = None);
        let loosened = tools.iter().map(|tool| tool.schema.clone()).collect();
        let grammars = self.grammars(&tools, several).ok().map(Arc::new);
        Ok(Compiled { grammars, loosened, is_new: true })
    }

    fn grammars(&self, tools: &[Tool], several: bool) -> Result<CallGrammars, GrammarError> {
        let all: Vec<&Tool> = tools.iter().collect();
        if !tools.iter().all(takes_objects) {
            return Err(GrammarError("describes no object".into()));
        }
        self.vocabulary.compile_calls(self.dialect.syntax(&all, several), self.control_tokens.to_vec())
    }
}
