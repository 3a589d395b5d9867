//! Reasons for ignored and rejected fields that several fields share.

pub(super) const PROVIDER_LABEL: &str = "a label for the provider's records, which this server does not have";
pub(super) const TEXT_ONLY: &str = "the engine reads and writes text only";
pub(super) const ONE_TIER: &str = "there is one service tier";
pub(super) const PREFIX_CACHE_IS_AUTOMATIC: &str = "the prefix cache finds prefixes by their content";
pub(super) const CONVERSATION_AS_SENT: &str = "the conversation is used as sent";
pub(super) const USE_MAX_TOKENS: &str = "use `max_tokens`";
pub(super) const NO_BEAM_SEARCH: &str = "there is no beam search";
pub(super) const NO_ADAPTERS: &str = "one model is served, without adapters";
pub(super) const NO_MODERATION: &str = "there is no moderation model";
pub(super) const NO_TOOLS: &str =
    "the server runs no tools; offer functions in `tools` and run them in the client";
