//! A served model: tokenizer, chat template, output dialects, limits, and constraints of its
//! answers.
//!
//! Prompt rendering: a control token's spelling in client text is split by a guard character before
//! rendering, and text is encoded piecewise between guards. So client text never becomes a control
//! token. Templates that reject a conversation as sent get it folded (`folded`) and with wrapped
//! arguments (`raw_arguments`).

use crate::{
    ApiError,
    answer::{Reading, ReasoningDialect, ToolDialect},
    aside::{LONG, aside},
    folded::{fold, shows_late_system},
    grammar::{BehindLast, Budget, CallsBeginning, Part, Refused, Shape, Vocabulary},
    raw_arguments::{MARK, RawArguments},
    request::{AskedForm, ChatRequest, ThinkingBudget, Tool, ToolChoice},
    tool_grammars::{Compiler, StrictRefused, ToolGrammars},
};
use kvasir_formats::{TextFiles, TextStream, Tokenizer};
use kvasir_kv::Token;
use kvasir_sample::{Constrained, Sampling};
use kvasir_template::ChatTemplate;
use serde_json::{Map, Value};
use std::{
    sync::{Arc, OnceLock},
    time::{SystemTime, UNIX_EPOCH},
};

/// Inserted into a control token's spelling in client text, so that it stays text.
const GUARD: char = '\u{fdd0}';
/// Appended to the last message's text to find where its continuation begins
/// (`continue_final_message`).
const END: char = '\u{fdd1}';

/// Facts about a model and its engine that requests depend on.
pub struct Facts {
    /// Vocabulary size.
    pub vocab: u32,
    /// Context length in tokens, prompt and answer together.
    pub max_len: u32,
    /// Cap on answer tokens, if configured.
    pub max_new_tokens: Option<u32>,
    /// Hidden size; `None` for the simulated device, which computes nothing.
    pub hidden: Option<u32>,
    /// End-of-sequence tokens.
    pub eos: Vec<Token>,
    /// Default sampling parameters.
    pub sampling: Sampling,
    /// Prefix cache salt by final sequence length: prefixes are shared only between sequences with
    /// equal salts.
    pub prefix_salt: Box<dyn Fn(u32) -> u64 + Send + Sync>,
}

/// A served model.
pub struct Model {
    /// Its public name.
    pub name: String,
    /// Facts about it.
    pub facts: Facts,
    tokenizer: Arc<Tokenizer>,
    /// Chat template; without one, only raw completions are served.
    template: Option<ChatTemplate>,
    /// Source of the template, for clients that render chats themselves.
    template_source: Option<String>,
    /// Template variables: `bos_token` and the like.
    variables: Map<String, Value>,
    /// Spellings of control tokens.
    specials: Vec<String>,
    /// Its tool call dialect.
    tool_dialect: ToolDialect,
    /// Its reasoning dialect, if it reasons.
    reasoning: Option<ReasoningDialect>,
    /// Control tokens kept in detokenized text, because they mark calls or reasoning.
    kept: Vec<(Token, String)>,
    /// Compiled token vocabulary, built on first use of structured output.
    vocabulary: OnceLock<Result<Vocabulary, Refused>>,
    /// Whether voluntary tool calls (`tool_choice: auto`) are constrained.
    constrain_calls: bool,
    tool_grammars: ToolGrammars,
}

/// Constraint of a chat answer.
#[derive(Debug, Default)]
pub(crate) struct ChatConstraint {
    pub(crate) constrained: Constrained,
    /// Whether tool calls are constrained from their start.
    pub(crate) calls: bool,
    /// Paths of tool schemas that cannot be compiled, when met for the first time.
    pub(crate) loosened: Vec<String>,
}

impl Model {
    /// Loads tokenizer and template; detects the dialects from the template.
    pub fn new(name: String, text: &TextFiles, facts: Facts) -> Result<Self, kvasir_formats::Error> {
        let tokenizer = text.tokenizer()?;
        let source = text.template_source(None)?;
        let template = source.as_ref().map(|_| text.template(None)).transpose()?;
        let dialects = source.as_deref().unwrap_or_default();
        let (tools, reasoning) =
            (ToolDialect::of_template(dialects), ReasoningDialect::of_template(dialects));
        Ok(Self {
            name,
            facts,
            specials: tokenizer.specials().map(|(_, text)| text).collect(),
            tokenizer: Arc::new(tokenizer),
            template,
            template_source: source,
            variables: text.template_variables(),
            tool_dialect: ToolDialect::default(),
            reasoning: None,
            kept: Vec::new(),
            vocabulary: OnceLock::new(),
            constrain_calls: true,
            tool_grammars: ToolGrammars::default(),
        }
        .speaking(tools, reasoning))
    }

    /// Sets the dialects in which answers are parsed.
    pub fn speaking(mut self, tools: ToolDialect, reasoning: Option<ReasoningDialect>) -> Self {
        let think = reasoning.map(|dialect| dialect.marks());
        let marks: Vec<&str> =
            tools.marks().into_iter().chain(think.into_iter().flat_map(|(a, b)| [a, b])).collect();
        // A marker may span several tokens: `<｜DSML｜` may be one of them.
        let counts = |text: &str| marks.iter().any(|mark| mark.contains(text));
        let kept = |(id, text): &(Token, String)| counts(text) && !self.facts.eos.contains(id);
        self.kept = self.tokenizer.specials().filter(kept).collect();
        self.tool_dialect = tools;
        self.reasoning = reasoning;
        self
    }

    /// Enables or disables constraints of voluntary tool calls.
    pub fn constraining_calls(mut self, on: bool) -> Self {
        self.constrain_calls = on;
        self
    }

    /// Its tool call dialect.
    pub fn tool_dialect(&self) -> ToolDialect {
        self.tool_dialect
    }

    /// Its reasoning dialect, if it reasons.
    pub fn reasoning_dialect(&self) -> Option<ReasoningDialect> {
        self.reasoning
    }

    /// Tokenizes a text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<Token>, ApiError> {
        let encode = || self.tokenizer.encode(text, add_special);
        let ids = if text.len() < LONG { encode() } else { aside(encode) };
        ids.map_err(|e| ApiError::param("prompt", e.to_string()))
    }

    /// Detokenizes ids.
    pub fn decode(&self, ids: &[Token]) -> String {
        self.tokenizer.decode(ids, false).unwrap_or_default()
    }

    /// Template variables (`bos_token` and the like) and the template's source.
    pub fn template_facts(&self) -> (&Map<String, Value>, Option<&str>) {
        (&self.variables, self.template_source.as_deref())
    }

    /// A token's full spelling.
    pub fn spelling(&self, token: Token) -> Option<String> {
        self.tokenizer.spelling(token)
    }

    /// A token's bytes.
    pub fn token_bytes(&self, token: Token) -> Vec<u8> {
        self.tokenizer.bytes(token).unwrap_or_default()
    }

    /// Streaming detokenizer of an answer. `marked` keeps the control tokens that mark calls and
    /// reasoning; `goes_on` means that the answer continues a text.
    pub fn detokenizer(self: &Arc<Self>, marked: bool, goes_on: bool) -> Detokenizer {
        let text = if goes_on { TextStream::going_on(true) } else { TextStream::new(true) };
        Detokenizer { model: self.clone(), text, marked }
    }

    /// Output parsing options of a chat answer.
    pub fn reading(&self, request: &ChatRequest, prompt: &[Token]) -> Reading {
        let offers_tools = !request.tools.is_empty() && request.tool_choice != ToolChoice::None;
        Reading {
            stop: request.sampling.stop.clone(),
            unstopped: request.sampling.length.min_tokens,
            goes_on: request.continue_final_message,
            calls: offers_tools.then(|| (self.tool_dialect, request.tools.clone().into())),
            reasoning: self.reasoning.map(|dialect| (dialect, self.ends_with(prompt, dialect.marks().0))),
            constrained: false,
            one_call: !request.parallel_tool_calls,
        }
    }

    /// Constraint of a chat answer: required calls, else the requested response format, else lazily
    /// constrained voluntary calls; plus the reasoning budget.
    pub(crate) fn chat_constraint(
        &self,
        request: &ChatRequest,
        prompt: &[Token],
    ) -> Result<ChatConstraint, ApiError> {
        let all: Vec<&Tool> = request.tools.iter().collect();
        let calls = |tools: &[&Tool], several: bool, param: &str| AskedForm {
            shape: Shape::Calls(self.tool_dialect.form(tools, several)),
            param: param.to_owned(),
        };
        let asked = match &request.tool_choice {
            ToolChoice::Required => Some(calls(&all, request.parallel_tool_calls, "tools")),
            ToolChoice::Named(name) => {
                let at = all.iter().position(|tool| tool.name == *name).unwrap_or_default();
                Some(calls(all.get(at..at + 1).unwrap_or_default(), false, "tool_choice"))
            }
            ToolChoice::Auto | ToolChoice::None => request.form.clone(),
        };
        let mut constraint = match asked {
            None if request.tool_choice == ToolChoice::Auto => self.free_calls(request, prompt)?,
            None => ChatConstraint::default(),
            Some(asked) => {
                asked.check_lengths(&request.sampling)?;
                let is_call = matches!(asked.shape, Shape::Calls(_));
                let form = self.constraint(&asked, &self.lead(prompt, is_call));
                let constrained = form.map_err(|error| match is_call {
                    true => all.iter().find_map(|tool| self.fault_of(tool)).unwrap_or(error),
                    false => error,
                })?;
                ChatConstraint { constrained, ..ChatConstraint::default() }
            }
        };
        if let Some(thinking) = request.thinking {
            constraint.constrained = self.thinking(thinking, constraint.constrained, prompt)?;
        }
        Ok(constraint)
    }

    /// Constraint of voluntary calls.
    fn free_calls(&self, request: &ChatRequest, prompt: &[Token]) -> Result<ChatConstraint, ApiError> {
        // The simulated device computes no logits to constrain.
        let is_off = !self.constrain_calls || request.tools.is_empty() || self.facts.hidden.is_none();
        let Some(dialect) = self.dialect_of_calls().filter(|_| !is_off) else {
            return Ok(ChatConstraint::default());
        };
        let compiled = aside(|| {
            let vocabulary = match self.vocabulary() {
                Ok(vocabulary) => vocabulary,
                Err(why) => {
                    let strict = request.tools.iter().find(|tool| tool.strict);
                    let refused = |tool: &Tool| StrictRefused { schema: tool.schema.clone(), why };
                    return strict.map(refused).map_or(Ok(None), Err);
                }
            };
            let compiler = Compiler { vocabulary, dialect, spelled: &self.kept };
            self.tool_grammars.of(&compiler, &request.tools, request.parallel_tool_calls).map(Some)
        });
        let refused = |StrictRefused { schema, why }| ApiError::param(&schema, format!("`{schema}` {why}"));
        let Some(compiled) = compiled.map_err(refused)? else { return Ok(ChatConstraint::default()) };
        let Some(grammars) = compiled.grammars else { return Ok(ChatConstraint::default()) };
        let length = request.sampling.length.min_tokens;
        let beginning = CallsBeginning {
            reasoning: self.reasoning.map(ReasoningDialect::marks),
            is_reasoning: self.reasoning.is_some_and(|dialect| self.ends_with(prompt, dialect.marks().0)),
            one_call: !request.parallel_tool_calls,
            // An answer with a minimum length continues after its call.
            behind_last: match request.sampling.ignore_eos || length > 0 {
                true => BehindLast::Anything,
                false => BehindLast::End,
            },
        };
        Ok(ChatConstraint {
            constrained: grammars.constraint(beginning),
            calls: true,
            loosened: if compiled.is_new { compiled.loosened } else { Vec::new() },
        })
    }

    /// The dialect in which calls are parsed, if any: harmony calls are parsed exactly where
    /// harmony reasoning is.
    fn dialect_of_calls(&self) -> Option<ToolDialect> {
        match (self.reasoning, self.tool_dialect) {
            (Some(ReasoningDialect::Harmony), _) => Some(ToolDialect::Harmony),
            (_, ToolDialect::Harmony) => None,
            (_, dialect) => Some(dialect),
        }
    }

    fn vocabulary(&self) -> Result<&Vocabulary, Refused> {
        let vocabulary = || Vocabulary::new(self.tokenizer.clone(), self.facts.vocab, &self.facts.eos);
        self.vocabulary.get_or_init(vocabulary).as_ref().map_err(Refused::clone)
    }

    /// The error of a tool's schema, if it cannot be compiled.
    fn fault_of(&self, tool: &Tool) -> Option<ApiError> {
        let shape = Shape::JsonSchema(tool.parameters.clone()?);
        self.constraint(&AskedForm { shape, param: tool.schema.clone() }, &[]).err()
    }

    /// Adds a reasoning budget to a constraint; no-op for models that do not reason.
    fn thinking(
        &self,
        asked: ThinkingBudget,
        form: Constrained,
        prompt: &[Token],
    ) -> Result<Constrained, ApiError> {
        let Some(dialect) = self.reasoning else { return Ok(form) };
        self.computes("a budget of reasoning")?;
        let (open, close) = dialect.marks();
        let token = |mark: &str| match self.encode(mark, false)?.as_slice() {
            [one] => Ok(*one),
            _ => {
                Err(ApiError::unsupported(asked.param, "this model marks its reasoning with several tokens"))
            }
        };
        let budget = Budget {
            tokens: asked.tokens as usize,
            open: token(open)?,
            close: token(close)?,
            is_begun: self.ends_with(prompt, open),
            vocab: self.facts.vocab,
        };
        Ok(budget.within(form))
    }

    /// Rejects features that need logits on the simulated device.
    pub(crate) fn computes(&self, what: &str) -> Result<(), ApiError> {
        match self.facts.hidden {
            Some(_) => Ok(()),
            None => Err(ApiError::not_offered(format!(
                "there is no {what}: the simulated device computes nothing"
            ))),
        }
    }

    /// Compiles a requested response format, preceded by `lead`.
    pub fn constraint(&self, asked: &AskedForm, lead: &[Part]) -> Result<Constrained, ApiError> {
        self.computes("form of answers")?;
        let compiled = aside(|| self.vocabulary().and_then(|v| v.compile(&asked.shape, lead)));
        compiled.map_err(|why| ApiError::param(&asked.param, format!("`{}` {why}", asked.param)))
    }

    /// Grammar parts before the constrained text: an optional reasoning block, unless the prompt
    /// has closed it.
    fn lead(&self, prompt: &[Token], is_call: bool) -> Vec<Part> {
        let Some(dialect) = self.reasoning else { return Vec::new() };
        let (open, close) = dialect.marks();
        let text = |text: &str| Part::Text(text.to_owned());
        let until = Part::Until(close.to_owned());
        match dialect {
            ReasoningDialect::Harmony => {
                let thought = Part::Optional(vec![text(open), until, text("<|start|>assistant")]);
                let channel = (!is_call).then(|| text("<|channel|>final<|message|>"));
                [thought].into_iter().chain(channel).collect()
            }
            _ if self.ends_with(prompt, close) => Vec::new(),
            _ if self.ends_with(prompt, open) => vec![until, Part::Gap],
            _ => vec![Part::Optional(vec![text(open), until, Part::Gap])],
        }
    }

    fn ends_with(&self, prompt: &[Token], mark: &str) -> bool {
        let tail = &prompt[prompt.len().saturating_sub(16)..];
        self.decode(tail).trim_end().ends_with(mark)
    }

    /// Renders a chat with the template and tokenizes it.
    pub fn chat_prompt(&self, request: &ChatRequest) -> Result<Vec<Token>, ApiError> {
        match request.is_long() {
            true => aside(|| self.rendered(request)),
            false => self.rendered(request),
        }
    }

    fn rendered(&self, request: &ChatRequest) -> Result<Vec<Token>, ApiError> {
        let template = self.template.as_ref();
        let template =
            template.ok_or_else(|| ApiError::param("messages", "this model has no chat template"))?;
        let mut variables = self.variables.clone();
        let own = request.template_kwargs.iter();
        variables.extend(own.map(|(name, value)| (name.clone(), self.guarded(value))));
        let mut messages: Vec<Value> =
            request.messages.iter().map(|message| self.guarded(&message.source)).collect();
        if let Some(last) = messages.last_mut().filter(|_| request.continue_final_message) {
            let said = last["content"].as_str().unwrap_or_default().trim_end();
            last["content"] = format!("{said}{END}").into();
        }
        let tools = match request.tools.is_empty() || request.tool_choice == ToolChoice::None {
            true => Value::Null,
            false => request.tools.iter().map(|tool| self.guarded(&tool.source)).collect(),
        };
        variables.insert("tools".into(), tools);
        variables.insert("add_generation_prompt".into(), request.add_generation_prompt.into());
        let mut text = self.render_messages(template, variables, messages)?;
        if let Some(end) = text.rfind(END).filter(|_| request.continue_final_message) {
            text.truncate(end);
        }
        let mut ids = Vec::new();
        for part in text.split(GUARD) {
            let encoded = self.encode(part, false);
            ids.extend(encoded.map_err(|error| ApiError { param: Some("messages".into()), ..error })?);
        }
        Ok(ids)
    }

    /// Renders the conversation as sent. If the template fails or drops a late system message,
    /// renders it folded; then with non-object arguments wrapped in objects.
    fn render_messages(
        &self,
        template: &ChatTemplate,
        mut variables: Map<String, Value>,
        mut messages: Vec<Value>,
    ) -> Result<String, ApiError> {
        let raw = RawArguments::take(&mut messages);
        let render =
            |variables: &Map<String, Value>| self.render(template, variables).map(|text| raw.restore(text));
        variables.insert("messages".into(), messages.into());
        let as_sent = render(&variables);
        let sent = variables["messages"].as_array().map_or(&[][..], Vec::as_slice);
        if let Ok(text) = &as_sent
            && shows_late_system(sent, text)
        {
            return as_sent;
        }
        let (mut messages, mut folded) = (sent.to_vec(), fold(sent.to_vec()));
        let mut render_messages = |messages: &[Value]| {
            variables.insert("messages".into(), messages.into());
            render(&variables)
        };
        let mut as_folded = render_messages(&folded);
        if as_folded.is_err() && !raw.is_empty() {
            raw.as_objects(&mut messages);
            raw.as_objects(&mut folded);
            as_folded = render_messages(&messages).or_else(|_| render_messages(&folded));
        }
        // Errors refer to the conversation as sent.
        as_folded.or(as_sent)
    }

    fn render(&self, template: &ChatTemplate, variables: &Map<String, Value>) -> Result<String, ApiError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        template.render(variables, now).map_err(|e| ApiError::param("messages", e.to_string()))
    }

    /// Guards every control token's spelling in the strings of a value.
    fn guarded(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.guarded_text(text).into(),
            Value::Array(items) => items.iter().map(|item| self.guarded(item)).collect(),
            Value::Object(map) => Value::Object(
                map.iter().map(|(key, item)| (self.guarded_text(key), self.guarded(item))).collect(),
            ),
            other => other.clone(),
        }
    }

    fn guarded_text(&self, text: &str) -> String {
        let text = text.replace([GUARD, END, MARK], "\u{fffd}");
        self.specials.iter().fold(text, |text, special| {
            let mut chars = special.chars();
            match chars.next().filter(|_| text.contains(special)) {
                Some(first) => text.replace(special, &format!("{first}{GUARD}{}", chars.as_str())),
                None => text,
            }
        })
    }
}

/// Streaming detokenizer of one answer.
pub struct Detokenizer {
    model: Arc<Model>,
    text: TextStream,
    marked: bool,
}

impl Detokenizer {
    /// Feeds a token; returns the text that it completes.
    pub fn push(&mut self, token: Token) -> String {
        match self.model.kept.iter().find(|(id, _)| self.marked && *id == token) {
            Some((_, spelling)) => self.text.finish() + spelling,
            None => self.text.push(&self.model.tokenizer, token),
        }
    }

    /// Flushes incomplete bytes at the end.
    pub fn finish(&mut self) -> String {
        self.text.finish()
    }
}
