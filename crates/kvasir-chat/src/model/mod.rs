//! A model's tokenizer, chat template and dialects (`chat_model`); renders prompts (`render`) and
//! compiles the constraints of answers (`chat_constraint`).

pub(crate) mod chat_constraint;
pub(crate) mod chat_model;
pub(crate) mod conversation;
pub(crate) mod detokenizer;
pub(crate) mod folded_conversation;
pub(crate) mod guard;
pub(crate) mod raw_arguments;
pub(crate) mod recipe;
pub(crate) mod remote_tokenizer;
pub(crate) mod render;
pub(crate) mod rendered_prompt;
pub(crate) mod tool_grammars;
pub(crate) mod tool_prompt;
