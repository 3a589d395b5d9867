//! The names under which requests may address the served model.

use crate::error::ApiError;
use crate::http::app::App;

/// The model's name and its aliases.
#[derive(Clone, Copy)]
pub(super) struct ModelNames<'a> {
    name: &'a str,
    /// `*` accepts any name.
    aliases: &'a [String],
}

impl App {
    pub(super) fn model_names(&self) -> ModelNames<'_> {
        ModelNames { name: &self.model.name, aliases: &self.rules.aliases }
    }
}

impl<'a> ModelNames<'a> {
    /// Whether requests may use this name. Ollama's clients append `:latest`.
    pub(super) fn accepts(self, name: &str) -> bool {
        let is_listed =
            |name: &str| name == self.name || self.aliases.iter().any(|alias| alias == "*" || alias == name);
        is_listed(name) || name.strip_suffix(":latest").is_some_and(is_listed)
    }

    /// Names shown in model lists: the model's and its aliases, without `*`.
    pub(super) fn listed(self) -> impl Iterator<Item = &'a str> {
        let aliases = self.aliases.iter().map(String::as_str).filter(|alias| *alias != "*");
        std::iter::once(self.name).chain(aliases)
    }

    /// Refuses a request for another model.
    pub(super) fn check(self, requested: Option<&str>) -> Result<(), ApiError> {
        match requested {
            Some(name) if !self.accepts(name) => Err(ApiError::not_found(
                "model",
                format!(
                    "there is no model `{name}`; this is `{}`, and --model-name gives it more names",
                    self.name
                ),
            )),
            _ => Ok(()),
        }
    }
}
