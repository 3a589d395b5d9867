//! Constraints of chat answers: required calls, the requested response format, calls as its
//! alternative, voluntary calls, and the reasoning budget.

use crate::answer::call_constraint::CallConstraint;
use crate::dialect::reasoning::ReasoningDialect;
use crate::dialect::tool_calls::ToolDialect;
use crate::error::ChatError;
use crate::grammar::call_grammars::{BehindLast, CallsBeginning};
use crate::grammar::reasoning_budget::ReasoningBudget;
use crate::grammar::spec::{Part, Shape};
use crate::grammar::vocabulary::{GrammarError, Vocabulary};
use crate::model::chat_model::ChatModel;
use crate::model::tool_grammars::{Compiler, FormatAlternative, FormatOrCallsError, StrictToolError};
use crate::tool::{Tool, ToolChoice};
use kvasir_kv::Token;
use kvasir_sample::Constrained;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, atomic::AtomicBool};

/// A requested response format, and the parameter that requested it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseFormat {
    /// The specification.
    pub shape: Shape,
    /// Name of the parameter, for errors.
    pub param: String,
}

/// Reasoning budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThinkingBudget {
    /// Maximum reasoning tokens.
    pub tokens: u32,
    /// Name of the parameter, for errors.
    #[serde(skip)]
    pub param: &'static str,
}

/// Rules that the answer of a chat must follow.
#[derive(Clone, Copy, Debug)]
pub struct AnswerRules<'a> {
    /// Offered tools.
    pub tools: &'a [Tool],
    /// Which tool must be called, if any.
    pub tool_choice: &'a ToolChoice,
    /// Whether an answer may hold several tool calls.
    pub parallel_tool_calls: bool,
    /// Required response format.
    pub format: Option<&'a ResponseFormat>,
    /// Reasoning budget.
    pub thinking: Option<ThinkingBudget>,
    /// Whether generation continues past end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Minimum length of the answer in tokens.
    pub min_tokens: u32,
    /// Whether reasoning is parsed apart from content, so that the tool call parser does not read
    /// it.
    pub separate_reasoning: bool,
    /// Setting it cancels the request: aborts compilation and mask computations.
    pub canceled: &'a Arc<AtomicBool>,
}

/// Constraint of a chat answer.
#[derive(Debug, Default)]
pub struct ChatConstraint {
    /// The token masks.
    pub constrained: Constrained,
    /// What the masks guarantee about tool calls.
    pub calls: CallConstraint,
    /// Paths of tool schemas that cannot be compiled; empty if they were reported before.
    pub loosened: Vec<String>,
}

impl ResponseFormat {
    /// Rejects `ignore_eos` and `min_tokens`: a constrained answer ends where its grammar does.
    pub fn check_lengths(&self, ignore_eos: bool, min_tokens: u32) -> Result<(), ChatError> {
        let clash = |parameter: &str| {
            let format = &self.param;
            let message = format!(
                "`{parameter}` cannot be combined with `{format}`: the answer ends where its format ends"
            );
            Err(ChatError::invalid(parameter, message))
        };
        match (ignore_eos, min_tokens) {
            (true, _) => clash("ignore_eos"),
            (_, 1..) => clash("min_tokens"),
            _ => Ok(()),
        }
    }
}

impl ChatModel {
    /// Constraint of a chat answer: required calls, else the requested response format with calls of
    /// the offered tools as its alternative, else lazily constrained voluntary calls; plus the
    /// reasoning budget. A format beside required calls concerns the answer of a later turn.
    pub fn chat_constraint(
        &self,
        rules: &AnswerRules<'_>,
        prompt: &[Token],
    ) -> Result<ChatConstraint, ChatError> {
        let all: Vec<&Tool> = rules.tools.iter().collect();
        let mut constraint = match (rules.tool_choice, rules.format) {
            (ToolChoice::Required, _) if all.is_empty() => {
                return Err(ChatError::invalid("tool_choice", "`tool_choice` needs `tools`"));
            }
            (ToolChoice::Required, _) => {
                self.required_calls(rules, &all, rules.parallel_tool_calls, "tools", prompt)?
            }
            (ToolChoice::Named(name), _) => {
                let at = all.iter().position(|tool| tool.name == *name).ok_or_else(|| {
                    ChatError::invalid("tool_choice", format!("`{name}` is none of `tools`"))
                })?;
                self.required_calls(rules, &all[at..=at], false, "tool_choice", prompt)?
            }
            (ToolChoice::Auto, Some(format)) => self.format_or_calls(rules, format, prompt)?,
            (ToolChoice::None, Some(format)) => self.format_only(rules, format, prompt)?,
            (ToolChoice::Auto, None) => self.voluntary_calls(rules, prompt)?,
            (ToolChoice::None, None) => ChatConstraint::default(),
        };
        if let Some(thinking) = rules.thinking {
            constraint.constrained = self.with_reasoning_budget(thinking, constraint.constrained, prompt)?;
        }
        Ok(constraint)
    }

    /// Constraint of an answer that consists of calls of these tools. `param` is the parameter that
    /// requires them, for errors.
    fn required_calls(
        &self,
        rules: &AnswerRules<'_>,
        tools: &[&Tool],
        several: bool,
        param: &str,
        prompt: &[Token],
    ) -> Result<ChatConstraint, ChatError> {
        let shape = Shape::Calls(self.tool_dialect().calls_only(tools, several));
        let requested = ResponseFormat { shape, param: param.to_owned() };
        requested.check_lengths(rules.ignore_eos, rules.min_tokens)?;
        let compiled = self.constraint(&requested, &self.lead(prompt, true), rules.canceled);
        let constrained = compiled.map_err(|error| {
            rules.tools.iter().find_map(|tool| self.schema_error(tool, rules.canceled)).unwrap_or(error)
        })?;
        Ok(ChatConstraint { constrained, calls: CallConstraint::Required, ..ChatConstraint::default() })
    }

    /// Constraint of an answer in the requested format.
    fn format_only(
        &self,
        rules: &AnswerRules<'_>,
        format: &ResponseFormat,
        prompt: &[Token],
    ) -> Result<ChatConstraint, ChatError> {
        format.check_lengths(rules.ignore_eos, rules.min_tokens)?;
        let constrained = self.constraint(format, &self.lead(prompt, false), rules.canceled)?;
        Ok(ChatConstraint { constrained, ..ChatConstraint::default() })
    }

    /// Constraint of an answer that either is in the requested format or consists of calls.
    fn format_or_calls(
        &self,
        rules: &AnswerRules<'_>,
        format: &ResponseFormat,
        prompt: &[Token],
    ) -> Result<ChatConstraint, ChatError> {
        let Some(dialect) = self.call_dialect().filter(|_| !rules.tools.is_empty()) else {
            return self.format_only(rules, format, prompt);
        };
        format.check_lengths(rules.ignore_eos, rules.min_tokens)?;
        self.require_logits("structured output")?;
        let beside = FormatAlternative {
            shape: format.shape.clone(),
            lead: self.lead(prompt, false),
            calls_lead: self.lead(prompt, true),
        };
        let compile = || {
            let vocabulary = self.vocabulary().map_err(FormatOrCallsError::Format)?;
            let compiler = self.compiler(vocabulary, dialect, rules);
            let several = rules.parallel_tool_calls;
            self.tool_grammars().get_or_compile_format_or_calls(&beside, &compiler, rules.tools, several)
        };
        let compiled = compile().map_err(|error| match error {
            FormatOrCallsError::Format(why) => {
                ChatError::invalid(&format.param, format!("`{}` {why}", format.param))
            }
            FormatOrCallsError::Tool(refused) => strict_tool_error(&refused),
        })?;
        let Some(grammars) = compiled.grammars else {
            let why = format!("calls of `tools` cannot be constrained beside `{}`", format.param);
            return Err(ChatError::invalid("tools", why));
        };
        let (reasoning, is_reasoning) = self.reasoning_at(prompt);
        // The parser of calls does not see reasoning that is separated.
        let text = if rules.separate_reasoning {
            grammars.classifier(None, false)
        } else {
            grammars.classifier(reasoning, is_reasoning)
        };
        Ok(ChatConstraint {
            constrained: grammars.constraint(grammars.classifier(reasoning, is_reasoning), rules.canceled),
            calls: CallConstraint::OrFormat(text),
            loosened: if compiled.is_new { compiled.loosened } else { Vec::new() },
        })
    }

    /// The markers of the reasoning block, if the model reasons, and whether the prompt ends inside it.
    fn reasoning_at(&self, prompt: &[Token]) -> (Option<(&'static str, &'static str)>, bool) {
        let marks = self.reasoning_dialect().map(ReasoningDialect::marks);
        (marks, marks.is_some_and(|(open, _)| self.ends_with(prompt, open)))
    }

    /// Constraint of voluntary calls.
    fn voluntary_calls(
        &self,
        rules: &AnswerRules<'_>,
        prompt: &[Token],
    ) -> Result<ChatConstraint, ChatError> {
        let is_off = !self.constrains_calls() || rules.tools.is_empty();
        let Some(dialect) = self.call_dialect().filter(|_| !is_off) else {
            return Ok(ChatConstraint::default());
        };
        let compile = || {
            let vocabulary = match self.vocabulary() {
                Ok(vocabulary) => vocabulary,
                Err(why) => {
                    let strict = rules.tools.iter().find(|tool| tool.strict);
                    let refused = |tool: &Tool| StrictToolError { schema: tool.schema.clone(), why };
                    return strict.map(refused).map_or(Ok(None), Err);
                }
            };
            let compiler = self.compiler(vocabulary, dialect, rules);
            self.tool_grammars().get_or_compile(&compiler, rules.tools, rules.parallel_tool_calls).map(Some)
        };
        let compiled = compile().map_err(|refused| strict_tool_error(&refused))?;
        let Some(compiled) = compiled else { return Ok(ChatConstraint::default()) };
        let Some(grammars) = compiled.grammars else { return Ok(ChatConstraint::default()) };
        let length = rules.min_tokens;
        let (reasoning, is_reasoning) = self.reasoning_at(prompt);
        let beginning = CallsBeginning {
            reasoning,
            is_reasoning,
            one_call: !rules.parallel_tool_calls,
            // An answer with a minimum length continues after its call.
            behind_last: if rules.ignore_eos || length > 0 { BehindLast::Anything } else { BehindLast::End },
        };
        Ok(ChatConstraint {
            constrained: grammars.constraint(beginning, rules.canceled),
            calls: CallConstraint::FromMarker,
            loosened: if compiled.is_new { compiled.loosened } else { Vec::new() },
        })
    }

    fn compiler<'a>(
        &'a self,
        vocabulary: &'a Vocabulary,
        dialect: ToolDialect,
        rules: &AnswerRules<'a>,
    ) -> Compiler<'a> {
        Compiler { vocabulary, dialect, control_tokens: self.marker_tokens(), canceled: rules.canceled }
    }

    /// The dialect in which calls are parsed, if any: harmony calls are parsed exactly where
    /// harmony reasoning is.
    fn call_dialect(&self) -> Option<ToolDialect> {
        match (self.reasoning_dialect(), self.tool_dialect()) {
            (Some(ReasoningDialect::Harmony), _) => Some(ToolDialect::Harmony),
            (_, ToolDialect::Harmony) => None,
            (_, dialect) => Some(dialect),
        }
    }

    /// The error of a tool's schema, if it cannot be compiled.
    fn schema_error(&self, tool: &Tool, canceled: &Arc<AtomicBool>) -> Option<ChatError> {
        let shape = Shape::JsonSchema(tool.parameters.clone()?);
        self.constraint(&ResponseFormat { shape, param: tool.schema.clone() }, &[], canceled).err()
    }

    /// Adds a reasoning budget to a constraint; no-op for models that do not reason.
    fn with_reasoning_budget(
        &self,
        requested: ThinkingBudget,
        inner: Constrained,
        prompt: &[Token],
    ) -> Result<Constrained, ChatError> {
        let Some(dialect) = self.reasoning_dialect() else { return Ok(inner) };
        self.require_logits("a reasoning budget")?;
        let (open, close) = dialect.marks();
        let token = |mark: &str| match self.tokenizer().encode(mark, false).as_deref() {
            Ok([one]) => Ok(*one),
            _ => Err(ChatError::Unsupported {
                parameter: requested.param.into(),
                reason: "this model marks its reasoning with several tokens",
            }),
        };
        let budget = ReasoningBudget {
            tokens: requested.tokens as usize,
            open: token(open)?,
            close: token(close)?,
            is_begun: self.ends_with(prompt, open),
            vocab: self.facts().size,
        };
        Ok(budget.within(inner))
    }

    /// Rejects a feature that needs logits if the backend computes none.
    pub fn require_logits(&self, feature: &'static str) -> Result<(), ChatError> {
        if self.facts().has_logits { Ok(()) } else { Err(ChatError::NoLogits { feature }) }
    }

    /// Compiles the shape of an answer, preceded by `lead`. Setting `canceled` aborts the
    /// compilation and the mask computations.
    pub fn compile(
        &self,
        shape: &Shape,
        lead: &[Part],
        canceled: &Arc<AtomicBool>,
    ) -> Result<Constrained, GrammarError> {
        self.vocabulary()?.compile_cancelable(shape, lead, canceled)
    }

    /// Compiles a requested response format, preceded by `lead`, as [`compile`](Self::compile)
    /// does; errors name the format's parameter.
    pub fn constraint(
        &self,
        requested: &ResponseFormat,
        lead: &[Part],
        canceled: &Arc<AtomicBool>,
    ) -> Result<Constrained, ChatError> {
        self.require_logits("structured output")?;
        let compiled = self.compile(&requested.shape, lead, canceled);
        compiled.map_err(|why| ChatError::invalid(&requested.param, format!("`{}` {why}", requested.param)))
    }

    /// Grammar parts before the constrained text: an optional reasoning block, unless the prompt
    /// has closed it.
    fn lead(&self, prompt: &[Token], is_call: bool) -> Vec<Part> {
        let Some(dialect) = self.reasoning_dialect() else { return Vec::new() };
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

fn strict_tool_error(StrictToolError { schema, why }: &StrictToolError) -> ChatError {
    ChatError::invalid(schema, format!("`{schema}` {why}"))
}
