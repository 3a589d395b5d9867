//! Recipe of a constraint: the serializable data from which another process builds the same
//! constraint.
//!
//! A compiled grammar cannot be serialized. The process that accepts the request compiles the
//! grammar, which validates it, and attaches its [`Recipe`]. The process that runs the engine
//! compiles it again with [`ChatModel::follow_recipe`]; both must have the same tokenizer and chat
//! template.

use crate::error::ChatError;
use crate::grammar::token_rules::TokenRules;
use crate::model::chat_constraint::{AnswerRules, ResponseFormat, ThinkingBudget};
use crate::model::chat_model::ChatModel;
use crate::tool::{Tool, ToolChoice};
use kvasir_kv::Token;
use kvasir_sample::{Constrained, Constraint, Follower};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, atomic::AtomicBool};

/// What a constraint is built from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recipe {
    /// The required form of the answer; `None` allows any text.
    pub form: Option<Form>,
    /// Allowed and forbidden tokens.
    pub rules: TokenRules,
}

/// The required form of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// The response format of a raw completion.
    Format(ResponseFormat),
    /// The rules of a chat answer.
    Chat(Box<ChatForm>),
}

/// Owned copy of [`AnswerRules`], without the cancellation flag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatForm {
    tools: Vec<Tool>,
    tool_choice: ToolChoice,
    parallel_tool_calls: bool,
    format: Option<ResponseFormat>,
    thinking: Option<ThinkingBudget>,
    ignore_eos: bool,
    min_tokens: u32,
    separate_reasoning: bool,
}

impl From<&AnswerRules<'_>> for ChatForm {
    fn from(rules: &AnswerRules<'_>) -> Self {
        Self {
            tools: rules.tools.to_vec(),
            tool_choice: rules.tool_choice.clone(),
            parallel_tool_calls: rules.parallel_tool_calls,
            format: rules.format.cloned(),
            thinking: rules.thinking,
            ignore_eos: rules.ignore_eos,
            min_tokens: rules.min_tokens,
            separate_reasoning: rules.separate_reasoning,
        }
    }
}

impl ChatForm {
    fn rules<'a>(&'a self, canceled: &'a Arc<AtomicBool>) -> AnswerRules<'a> {
        AnswerRules {
            tools: &self.tools,
            tool_choice: &self.tool_choice,
            parallel_tool_calls: self.parallel_tool_calls,
            format: self.format.as_ref(),
            thinking: self.thinking,
            ignore_eos: self.ignore_eos,
            min_tokens: self.min_tokens,
            separate_reasoning: self.separate_reasoning,
            canceled,
        }
    }
}

impl Recipe {
    /// Attaches this recipe to the constraint that was built from it; without a constraint, returns
    /// none.
    pub fn describe(self, constrained: Constrained) -> Constrained {
        let with_recipe = |inner| Arc::new(WithRecipe { inner, recipe: self }) as Arc<dyn Constraint>;
        Constrained(constrained.0.map(with_recipe))
    }
}

impl ChatModel {
    /// Builds the constraint of an answer to `prompt` from a recipe in JSON. Setting `canceled`
    /// aborts the compilation and the mask computations.
    pub fn follow_recipe(
        &self,
        recipe: &str,
        prompt: &[Token],
        canceled: &Arc<AtomicBool>,
    ) -> Result<Constrained, ChatError> {
        let recipe: Recipe = serde_json::from_str(recipe)
            .map_err(|error| ChatError::invalid("recipe", format!("`recipe`: {error}")))?;
        let constrained = match &recipe.form {
            None => Constrained::default(),
            Some(Form::Format(format)) => self.constraint(format, &[], canceled)?,
            Some(Form::Chat(form)) => self.chat_constraint(&form.rules(canceled), prompt)?.constrained,
        };
        Ok(recipe.rules.clone().within(constrained))
    }
}

/// A constraint with the recipe it was built from.
#[derive(Debug)]
struct WithRecipe {
    inner: Arc<dyn Constraint>,
    recipe: Recipe,
}

impl Constraint for WithRecipe {
    fn follow(&self) -> Box<dyn Follower> {
        self.inner.follow()
    }

    fn recipe(&self) -> Option<String> {
        // Serialization fails only for maps whose keys are not strings.
        serde_json::to_string(&self.recipe).ok()
    }
}
