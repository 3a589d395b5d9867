//! Constraints of chat answers: required calls, the requested response format, calls as its
//! alternative, voluntary calls, and the reasoning budget.

use crate::answer::call_constraint::CallConstraint;
use crate::dialect::reasoning::ReasoningDialect;
use crate::dialect::tool_calls::ToolDialect;
use crate::error::ApiError;
use crate::grammar::call_grammars::{BehindLast, CallsBeginning};
use crate::grammar::reasoning_budget::ReasoningBudget;
use crate::grammar::spec::{Part, Shape};
use crate::grammar::token_rules::TokenRules;
use crate::grammar::vocabulary::{GrammarError, Vocabulary};
use crate::model::Model;
use crate::model::tool_grammars::{Compiler, FormatAlternative, FormatOrCallsError, StrictToolError};
use crate::request::chat::{ChatRequest, ThinkingBudget};
use crate::request::response_format::ResponseFormat;
use crate::request::sampling::SamplingFields;
use crate::request::tools::{Tool, ToolChoice};
use kvasir_kv::Token;
use kvasir_sample::Constrained;

/// Constraint of a chat answer.
#[derive(Debug, Default)]
pub(crate) struct ChatConstraint {
    pub(crate) constrained: Constrained,
    /// What it guarantees of tool calls.
    pub(crate) calls: CallConstraint,
    /// Paths of tool schemas that cannot be compiled, when met for the first time.
    pub(crate) loosened: Vec<String>,
}

impl Model {
    /// Constraint of a chat answer: required calls, else the requested response format with calls of
    /// the offered tools as its alternative, else lazily constrained voluntary calls; plus the
    /// reasoning budget. A format beside required calls concerns the answer of a later turn.
    pub(crate) fn chat_constraint(
        &self,
        request: &ChatRequest,
        prompt: &[Token],
    ) -> Result<ChatConstraint, ApiError> {
        let all: Vec<&Tool> = request.tools.iter().collect();
        let mut constraint = match (&request.tool_choice, &request.response_format) {
            (ToolChoice::Required, _) => {
                self.required_calls(request, &all, request.parallel_tool_calls, "tools", prompt)?
            }
            (ToolChoice::Named(name), _) => {
                let at = all.iter().position(|tool| tool.name == *name).unwrap_or_default();
                let one = all.get(at..at + 1).unwrap_or_default();
                self.required_calls(request, one, false, "tool_choice", prompt)?
            }
            (ToolChoice::Auto, Some(format)) => self.format_or_calls(request, format, prompt)?,
            (ToolChoice::None, Some(format)) => self.format_only(request, format, prompt)?,
            (ToolChoice::Auto, None) => self.voluntary_calls(request, prompt)?,
            (ToolChoice::None, None) => ChatConstraint::default(),
        };
        if let Some(thinking) = request.thinking {
            constraint.constrained = self.with_reasoning_budget(thinking, constraint.constrained, prompt)?;
        }
        Ok(constraint)
    }

    /// Constraint of an answer that consists of calls of these tools. `param` is the parameter that
    /// requires them, for errors.
    fn required_calls(
        &self,
        request: &ChatRequest,
        tools: &[&Tool],
        several: bool,
        param: &str,
        prompt: &[Token],
    ) -> Result<ChatConstraint, ApiError> {
        let shape = Shape::Calls(self.tool_dialect.calls_only(tools, several));
        let requested = ResponseFormat { shape, param: param.to_owned() };
        requested.check_lengths(&request.sampling)?;
        let compiled = self.constraint(&requested, &self.lead(prompt, true));
        let constrained = compiled.map_err(|error| {
            request.tools.iter().find_map(|tool| self.schema_error(tool)).unwrap_or(error)
        })?;
        Ok(ChatConstraint { constrained, calls: CallConstraint::Required, ..ChatConstraint::default() })
    }

    /// Constraint of an answer in the requested format.
    fn format_only(
        &self,
        request: &ChatRequest,
        format: &ResponseFormat,
        prompt: &[Token],
    ) -> Result<ChatConstraint, ApiError> {
        format.check_lengths(&request.sampling)?;
        let constrained = self.constraint(format, &self.lead(prompt, false))?;
        Ok(ChatConstraint { constrained, ..ChatConstraint::default() })
    }

    /// Constraint of an answer that either is in the requested format or consists of calls.
    fn format_or_calls(
        &self,
        request: &ChatRequest,
        format: &ResponseFormat,
        prompt: &[Token],
    ) -> Result<ChatConstraint, ApiError> {
        let Some(dialect) = self.call_dialect().filter(|_| !request.tools.is_empty()) else {
            return self.format_only(request, format, prompt);
        };
        format.check_lengths(&request.sampling)?;
        self.require_logits("form of answers")?;
        let beside = FormatAlternative {
            shape: format.shape.clone(),
            lead: self.lead(prompt, false),
            calls_lead: self.lead(prompt, true),
        };
        let compile = || {
            let vocabulary = self.vocabulary().map_err(FormatOrCallsError::Format)?;
            let compiler = Compiler { vocabulary, dialect, control_tokens: &self.marker_tokens };
            let several = request.parallel_tool_calls;
            self.tool_grammars.get_or_compile_format_or_calls(&beside, &compiler, &request.tools, several)
        };
        let compiled = compile().map_err(|error| match error {
            FormatOrCallsError::Format(why) => {
                ApiError::param(&format.param, format!("`{}` {why}", format.param))
            }
            FormatOrCallsError::Tool(refused) => strict_tool_error(&refused),
        })?;
        let Some(grammars) = compiled.grammars else {
            let why = format!("calls of `tools` cannot be constrained beside `{}`", format.param);
            return Err(ApiError::param("tools", why));
        };
        let (reasoning, is_reasoning) = self.reasoning_at(prompt);
        // The parser of calls does not see reasoning that is separated.
        let text = if request.sampling.output.separate_reasoning {
            grammars.classifier(None, false)
        } else {
            grammars.classifier(reasoning, is_reasoning)
        };
        Ok(ChatConstraint {
            constrained: grammars.constraint(grammars.classifier(reasoning, is_reasoning)),
            calls: CallConstraint::OrFormat(text),
            loosened: if compiled.is_new { compiled.loosened } else { Vec::new() },
        })
    }

    /// The markers of the reasoning block, if the model reasons, and whether the prompt ends inside it.
    fn reasoning_at(&self, prompt: &[Token]) -> (Option<(&'static str, &'static str)>, bool) {
        let marks = self.reasoning.map(ReasoningDialect::marks);
        (marks, marks.is_some_and(|(open, _)| self.ends_with(prompt, open)))
    }

    /// Constraint of voluntary calls.
    fn voluntary_calls(&self, request: &ChatRequest, prompt: &[Token]) -> Result<ChatConstraint, ApiError> {
        // The simulated device computes no logits to constrain.
        let is_off = !self.constrain_calls || request.tools.is_empty() || self.facts.hidden.is_none();
        let Some(dialect) = self.call_dialect().filter(|_| !is_off) else {
            return Ok(ChatConstraint::default());
        };
        let compile = || {
            let vocabulary = match self.vocabulary() {
                Ok(vocabulary) => vocabulary,
                Err(why) => {
                    let strict = request.tools.iter().find(|tool| tool.strict);
                    let refused = |tool: &Tool| StrictToolError { schema: tool.schema.clone(), why };
                    return strict.map(refused).map_or(Ok(None), Err);
                }
            };
            let compiler = Compiler { vocabulary, dialect, control_tokens: &self.marker_tokens };
            self.tool_grammars
                .get_or_compile(&compiler, &request.tools, request.parallel_tool_calls)
                .map(Some)
        };
        let compiled = compile().map_err(|refused| strict_tool_error(&refused))?;
        let Some(compiled) = compiled else { return Ok(ChatConstraint::default()) };
        let Some(grammars) = compiled.grammars else { return Ok(ChatConstraint::default()) };
        let length = request.sampling.length.min_tokens;
        let (reasoning, is_reasoning) = self.reasoning_at(prompt);
        let beginning = CallsBeginning {
            reasoning,
            is_reasoning,
            one_call: !request.parallel_tool_calls,
            // An answer with a minimum length continues after its call.
            behind_last: if request.sampling.ignore_eos || length > 0 {
                BehindLast::Anything
            } else {
                BehindLast::End
            },
        };
        Ok(ChatConstraint {
            constrained: grammars.constraint(beginning),
            calls: CallConstraint::FromMarker,
            loosened: if compiled.is_new { compiled.loosened } else { Vec::new() },
        })
    }

    /// The dialect in which calls are parsed, if any: harmony calls are parsed exactly where
    /// harmony reasoning is.
    fn call_dialect(&self) -> Option<ToolDialect> {
        match (self.reasoning, self.tool_dialect) {
            (Some(ReasoningDialect::Harmony), _) => Some(ToolDialect::Harmony),
            (_, ToolDialect::Harmony) => None,
            (_, dialect) => Some(dialect),
        }
    }

    fn vocabulary(&self) -> Result<&Vocabulary, GrammarError> {
        let vocabulary = || Vocabulary::new(self.tokenizer.clone(), self.facts.vocab, &self.facts.eos);
        self.vocabulary.get_or_init(vocabulary).as_ref().map_err(GrammarError::clone)
    }

    /// The error of a tool's schema, if it cannot be compiled.
    fn schema_error(&self, tool: &Tool) -> Option<ApiError> {
        let shape = Shape::JsonSchema(tool.parameters.clone()?);
        self.constraint(&ResponseFormat { shape, param: tool.schema.clone() }, &[]).err()
    }

    /// Adds a reasoning budget to a constraint; no-op for models that do not reason.
    fn with_reasoning_budget(
        &self,
        requested: ThinkingBudget,
        inner: Constrained,
        prompt: &[Token],
    ) -> Result<Constrained, ApiError> {
        let Some(dialect) = self.reasoning else { return Ok(inner) };
        self.require_logits("a budget of reasoning")?;
        let (open, close) = dialect.marks();
        let token = |mark: &str| match self.encode(mark, false)?.as_slice() {
            [one] => Ok(*one),
            _ => Err(ApiError::unsupported(
                requested.param,
                "this model marks its reasoning with several tokens",
            )),
        };
        let budget = ReasoningBudget {
            tokens: requested.tokens as usize,
            open: token(open)?,
            close: token(close)?,
            is_begun: self.ends_with(prompt, open),
            vocab: self.facts.vocab,
        };
        Ok(budget.within(inner))
    }

    /// Adds `allowed_token_ids` and `bad_words` to a constraint.
    pub(crate) fn with_token_rules(
        &self,
        fields: &SamplingFields,
        inner: Constrained,
    ) -> Result<Constrained, ApiError> {
        let mut forbidden = Vec::new();
        for word in &fields.bad_words {
            let bare = self.encode(word.trim_start(), false)?;
            // The same word behind a space is another token in most vocabularies.
            let spaced = self.encode(&format!(" {}", word.trim_start()), false)?;
            forbidden.extend([bare, spaced].into_iter().filter(|ids| !ids.is_empty()));
        }
        forbidden.dedup();
        let rules =
            TokenRules { allowed: fields.allowed_token_ids.clone(), forbidden, vocab: self.facts.vocab };
        if !rules.allowed.is_empty() || !rules.forbidden.is_empty() {
            self.require_logits("choice of tokens")?;
        }
        Ok(rules.within(inner))
    }

    /// Rejects features that need logits on the simulated device.
    pub(crate) fn require_logits(&self, what: &str) -> Result<(), ApiError> {
        match self.facts.hidden {
            Some(_) => Ok(()),
            None => Err(ApiError::not_offered(format!(
                "there is no {what}: the simulated device computes nothing"
            ))),
        }
    }

    /// Compiles a requested response format, preceded by `lead`.
    pub fn constraint(&self, requested: &ResponseFormat, lead: &[Part]) -> Result<Constrained, ApiError> {
        self.require_logits("form of answers")?;
        let compiled = self.vocabulary().and_then(|vocabulary| vocabulary.compile(&requested.shape, lead));
        compiled.map_err(|why| ApiError::param(&requested.param, format!("`{}` {why}", requested.param)))
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
}

fn strict_tool_error(StrictToolError { schema, why }: &StrictToolError) -> ApiError {
    ApiError::param(schema, format!("`{schema}` {why}"))
}
