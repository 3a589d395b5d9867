//! A model's tokenizer, chat template, dialects and compiled grammars.

use crate::answer::call_constraint::CallConstraint;
use crate::answer::choice::ParseOptions;
use crate::dialect::reasoning::ReasoningDialect;
use crate::dialect::tool_calls::ToolDialect;
use crate::error::ChatError;
use crate::grammar::vocabulary::{GrammarError, Vocabulary};
use crate::model::detokenizer::{Detokenizer, DetokenizerState};
use crate::model::guard::{GUARD, Guard};
use crate::model::tool_grammars::ToolGrammars;
use crate::tool::{Tool, ToolChoice};
use kvasir_formats::{TextFiles, Tokenizer};
use kvasir_kv::Token;
use kvasir_template::ChatTemplate;
use serde_json::{Map, Value};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, OnceLock},
};

/// Spellings of the fill-in-the-middle tokens by model family: prefix, suffix, middle.
const FILL_IN_MIDDLE: [[&str; 3]; 5] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
];

/// Properties of the model and its backend that the tokenizer files do not give.
#[derive(Clone, Debug)]
pub struct VocabularyFacts {
    /// Vocabulary size.
    pub size: u32,
    /// End-of-sequence tokens.
    pub eos: Vec<Token>,
    /// Whether the backend computes logits, which constraints need.
    pub has_logits: bool,
}

/// A model's tokenizer, chat template and dialects, with a cache of the grammars compiled for it.
pub struct ChatModel {
    facts: VocabularyFacts,
    tokenizer: Arc<Tokenizer>,
    /// Chat template; without one, only raw completions are possible.
    template: Option<ChatTemplate>,
    /// Source of the template, for clients that render chats themselves.
    template_source: Option<String>,
    /// Template variables: `bos_token` and the like, and the caller's own.
    variables: Map<String, Value>,
    guard: Guard,
    tool_dialect: ToolDialect,
    /// Its reasoning dialect, if it reasons.
    reasoning: Option<ReasoningDialect>,
    /// Control tokens kept in detokenized text, because they mark calls or reasoning.
    marker_tokens: Arc<[(Token, String)]>,
    /// Compiled token vocabulary, built on first use of structured output.
    vocabulary: OnceLock<Result<Vocabulary, GrammarError>>,
    /// Whether voluntary tool calls ([`ToolChoice::Auto`]) are constrained.
    constrain_calls: bool,
    tool_grammars: ToolGrammars,
}

impl ChatModel {
    /// Loads the template; detects the dialects from it.
    pub fn new(
        text: &TextFiles,
        tokenizer: Arc<Tokenizer>,
        facts: VocabularyFacts,
    ) -> Result<Self, kvasir_formats::Error> {
        let source = text.template_source(None)?;
        let template = source.as_ref().map(|_| text.template(None)).transpose()?;
        let dialects = source.as_deref().unwrap_or_default();
        let (tools, reasoning) =
            (ToolDialect::of_template(dialects), ReasoningDialect::of_template(dialects));
        Ok(Self {
            facts,
            guard: Guard(tokenizer.special_tokens().map(|(_, text)| text).collect()),
            tokenizer,
            template,
            template_source: source,
            variables: text.template_variables(),
            tool_dialect: ToolDialect::default(),
            reasoning: None,
            marker_tokens: Arc::default(),
            vocabulary: OnceLock::new(),
            constrain_calls: true,
            tool_grammars: ToolGrammars::default(),
        }
        .with_dialects(tools, reasoning))
    }

    /// Sets the dialects in which answers are parsed.
    pub fn with_dialects(mut self, tools: ToolDialect, reasoning: Option<ReasoningDialect>) -> Self {
        let think = reasoning.map(|dialect| dialect.marks());
        let marks: Vec<&str> =
            tools.marks().into_iter().chain(think.into_iter().flat_map(|(a, b)| [a, b])).collect();
        // A marker may span several tokens: `<｜DSML｜` may be one of them.
        let counts = |text: &str| marks.iter().any(|mark| mark.contains(text));
        let kept = |(id, text): &(Token, String)| counts(text) && !self.facts.eos.contains(id);
        self.marker_tokens = self.tokenizer.special_tokens().filter(kept).collect();
        self.tool_dialect = tools;
        self.reasoning = reasoning;
        self
    }

    /// Replaces the chat template, and detects the dialects of the new one.
    pub fn with_template(self, source: &str) -> Result<Self, ChatError> {
        let invalid = |e| ChatError::invalid("chat_template", format!("the chat template is invalid: {e}"));
        let template = Some(ChatTemplate::new(source).map_err(invalid)?);
        let (tools, reasoning) = (ToolDialect::of_template(source), ReasoningDialect::of_template(source));
        Ok(Self { template, template_source: Some(source.to_owned()), ..self }
            .with_dialects(tools, reasoning))
    }

    /// Adds template variables, which those of a conversation override.
    pub fn with_template_kwargs(mut self, kwargs: Map<String, Value>) -> Self {
        self.variables.extend(kwargs);
        self
    }

    /// Enables or disables constraints of voluntary tool calls.
    pub fn with_constrained_calls(mut self, on: bool) -> Self {
        self.constrain_calls = on;
        self
    }

    pub(super) fn facts(&self) -> &VocabularyFacts {
        &self.facts
    }

    /// The model's tokenizer, shared.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    pub(super) fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    pub(super) fn guard(&self) -> &Guard {
        &self.guard
    }

    pub(super) fn marker_tokens(&self) -> &[(Token, String)] {
        &self.marker_tokens
    }

    pub(super) fn tool_grammars(&self) -> &ToolGrammars {
        &self.tool_grammars
    }

    /// Whether voluntary calls are constrained: never without logits.
    pub(super) fn constrains_calls(&self) -> bool {
        self.constrain_calls && self.facts.has_logits
    }

    /// Whether it has a chat template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Whether its chat template does not render tools, so that a generic prompt describes them.
    /// False without a template.
    pub fn needs_tool_prompt(&self) -> bool {
        self.template_source.as_deref().is_some_and(|source| !source.contains("tools"))
    }

    /// Template variables: `bos_token` and the like, and those of
    /// [`ChatModel::with_template_kwargs`].
    pub fn template_variables(&self) -> &Map<String, Value> {
        &self.variables
    }

    /// The source of the chat template, if there is one.
    pub fn template_source(&self) -> Option<&str> {
        self.template_source.as_deref()
    }

    /// Its tool call dialect.
    pub fn tool_dialect(&self) -> ToolDialect {
        self.tool_dialect
    }

    /// Its reasoning dialect, if it reasons.
    pub fn reasoning_dialect(&self) -> Option<ReasoningDialect> {
        self.reasoning
    }

    /// The vocabulary of structured output, built on first use.
    pub(super) fn vocabulary(&self) -> Result<&Vocabulary, GrammarError> {
        let vocabulary = || Vocabulary::new(self.tokenizer.clone(), self.facts.size, &self.facts.eos);
        self.vocabulary.get_or_init(vocabulary).as_ref().map_err(GrammarError::clone)
    }

    /// Detokenizes ids.
    pub fn decode(&self, ids: &[Token]) -> String {
        self.tokenizer.decode(ids, false).unwrap_or_default()
    }

    /// Whether a prompt ends with this marker, ignoring trailing white space.
    pub fn ends_with(&self, prompt: &[Token], mark: &str) -> bool {
        let tail = &prompt[prompt.len().saturating_sub(16)..];
        self.decode(tail).trim_end().ends_with(mark)
    }

    /// Parsing options of the answer to this prompt. With `separate_reasoning`, reasoning is parsed
    /// apart from content. The caller sets stop sequences, lengths and `constrained`.
    pub fn parse_options(
        &self,
        tools: &[Tool],
        choice: &ToolChoice,
        separate_reasoning: bool,
        prompt: &[Token],
    ) -> ParseOptions {
        let offers_tools = !tools.is_empty() && *choice != ToolChoice::None;
        ParseOptions {
            calls: offers_tools.then(|| (self.tool_dialect, tools.to_vec().into())),
            reasoning: self
                .reasoning
                .filter(|_| separate_reasoning)
                .map(|dialect| (dialect, self.ends_with(prompt, dialect.marks().0))),
            constrained: CallConstraint::None,
            ..ParseOptions::default()
        }
    }

    /// The fill-in-the-middle prompt for the gap between two texts, in the order prefix, suffix,
    /// middle. Spellings of control tokens in the texts stay text. `encode` tokenizes a piece of
    /// text.
    pub fn fill_in_middle<E: From<ChatError>>(
        &self,
        before: &str,
        after: &str,
        encode: impl Fn(&str) -> Result<Vec<Token>, E>,
    ) -> Result<Vec<Token>, E> {
        let marks = FILL_IN_MIDDLE.iter().find_map(|marks| {
            let [prefix, suffix, middle] = marks.map(|mark| self.tokenizer.token_to_id(mark));
            Some([prefix?, suffix?, middle?])
        });
        let [prefix, suffix, middle] = marks.ok_or_else(|| ChatError::Unsupported {
            parameter: "suffix".into(),
            reason: "the model's vocabulary has no fill-in-the-middle tokens",
        })?;
        let text = |text: &str| -> Result<Vec<Token>, E> {
            let guarded = self.guard.text(text);
            Ok(guarded.split(GUARD).map(&encode).collect::<Result<Vec<_>, _>>()?.concat())
        };
        Ok([vec![prefix], text(before)?, vec![suffix], text(after)?, vec![middle]].concat())
    }

    /// Streaming detokenizer of an answer. `marked` keeps the control tokens that mark calls and
    /// reasoning; `continues`: the answer continues a text, so a leading space is kept;
    /// `skip_special` drops the other control tokens.
    pub fn detokenizer(&self, marked: bool, continues: bool, skip_special: bool) -> Detokenizer {
        self.resume_detokenizer(DetokenizerState::new(marked, continues, skip_special))
    }

    /// A streaming detokenizer that continues from this state.
    pub fn resume_detokenizer(&self, state: DetokenizerState) -> Detokenizer {
        let markers = if state.is_marked() { self.marker_tokens.clone() } else { Arc::default() };
        Detokenizer::new(self.tokenizer.clone(), markers, state)
    }

    /// A hash of the tokenizer, the chat template and the marker tokens: two models with equal
    /// hashes tokenize and detokenize alike.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.tokenizer.fingerprint(), &self.template_source, &self.marker_tokens).hash(&mut hasher);
        hasher.finish()
    }
}
