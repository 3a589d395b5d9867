//! How an answer is generated and parsed: its constraint, token rules and parsing options.

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::model::Model;
use crate::request::chat::ChatRequest;
use crate::request::sampling::SamplingFields;
use kvasir_chat::ResponseFormat;
use kvasir_chat::grammar::TokenRules;
use kvasir_chat::{AnswerRules, ChatConstraint, Form, ParseOptions, Recipe};
use kvasir_kv::Token;
use kvasir_sample::Constrained;

impl Model {
    /// Constraint of a chat answer, with its token rules.
    pub(crate) fn chat_constraint(
        &self,
        request: &ChatRequest,
        prompt: &[Token],
    ) -> Result<ChatConstraint, ApiError> {
        let rules = AnswerRules {
            tools: &request.tools,
            tool_choice: &request.tool_choice,
            parallel_tool_calls: request.parallel_tool_calls,
            format: request.response_format.as_ref(),
            thinking: request.thinking,
            ignore_eos: request.sampling.ignore_eos,
            min_tokens: request.sampling.length.min_tokens,
            separate_reasoning: request.sampling.output.separate_reasoning,
            canceled: &RequestContext::current().gone,
        };
        let constraint = self.chat.chat_constraint(&rules, prompt)?;
        let form = constraint.constrained.0.is_some().then(|| Form::Chat(Box::new((&rules).into())));
        let constrained = self.with_token_rules(&request.sampling, constraint.constrained, form)?;
        Ok(ChatConstraint { constrained, ..constraint })
    }

    /// Constraint of a raw completion, in a requested format if any, with its token rules.
    pub(crate) fn completion_constraint(
        &self,
        format: Option<&ResponseFormat>,
        fields: &SamplingFields,
    ) -> Result<Constrained, ApiError> {
        let constrained = match format {
            Some(format) => self.chat.constraint(format, &[], &RequestContext::current().gone)?,
            None => Constrained::default(),
        };
        self.with_token_rules(fields, constrained, format.cloned().map(Form::Format))
    }

    /// Output parsing options of a chat answer.
    pub fn parse_options(&self, request: &ChatRequest, prompt: &[Token]) -> ParseOptions {
        let separate_reasoning = request.sampling.output.separate_reasoning;
        let options =
            self.chat.parse_options(&request.tools, &request.tool_choice, separate_reasoning, prompt);
        ParseOptions {
            stop: request.sampling.stop.clone(),
            stop_regex: request.sampling.stop_regex.clone(),
            min_tokens: request.sampling.length.min_tokens,
            continues: request.continue_final_message,
            one_call: !request.parallel_tool_calls,
            ..options
        }
    }

    /// Adds `allowed_token_ids` and `bad_words` to a constraint, and attaches the recipe from which
    /// a worker process builds the whole constraint.
    fn with_token_rules(
        &self,
        fields: &SamplingFields,
        inner: Constrained,
        form: Option<Form>,
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
            self.chat.require_logits("choice of tokens")?;
        }
        let constrained = rules.clone().within(inner);
        Ok(Recipe { form, rules }.describe(constrained))
    }
}
