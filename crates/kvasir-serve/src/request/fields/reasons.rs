//! Why fields are ignored or rejected, where several tables say it.

pub(super) const LABEL: &str = "a label for the provider's records, which this server does not have";
pub(super) const MEDIA: &str = "the engine reads and writes text only";
pub(super) const ONE_TIER: &str = "there is one service tier";
pub(super) const FOUND: &str = "the prefix cache finds prefixes by their content";
pub(super) const AS_SENT: &str = "the conversation is used as sent";
pub(super) const MAX_TOKENS: &str = "use `max_tokens`";
pub(super) const NO_BEAMS: &str = "there is no beam search";
pub(super) const NO_ADAPTERS: &str = "one model is served, without adapters";
pub(super) const NO_MODERATION: &str = "there is no moderation model";
pub(super) const NO_TOOLS: &str =
    "the server runs no tools; offer functions in `tools` and run them in the client";
