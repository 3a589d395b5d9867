//! Tool call dialects: which there are, how a chat template tells its dialect, and how each writes
//! calls.
//!
//! A dialect is detected from the chat template (`of_template`) or named as vLLM and SGLang name
//! their parsers (`named`). `call_format` selects the parser and its marker table, `marks` the
//! control tokens that detokenization must keep; `call_layout` and `call_syntax` build the
//! grammars of calls.

use crate::dialect::markers::{
    CallBody, CallFormat, DEEPSEEK, DSML, DSML_V4, GEMMA4, GLM, HARMONY_MARKERS, HERMES, KIMI_K2, LFM2,
    LLAMA3, MISTRAL, NEMOTRON, PHI4, PYTHON, QWEN3_CODER,
};

/// A tool call dialect: how a model family writes tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolDialect {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`: Hermes, Qwen.
    #[default]
    Hermes,
    /// `{"name": .., "parameters": ..}`, also after `<|python_tag|>`: Llama 3.
    Llama3Json,
    /// `[f(a=1)]`: Llama 3.2 and 4, Gemma 3 (also in a `tool_code` fence).
    Pythonic,
    /// `<|tool_call_start|>[f(a=1)]<|tool_call_end|>`: LFM2.
    Lfm2,
    /// `<|tool_call>call:f{a:1,b:<|"|>text<|"|>}<tool_call|>`: Gemma 4.
    Gemma4,
    /// `<TOOLCALL>[{"name": .., "arguments": ..}]</TOOLCALL>`: Nemotron.
    Nemotron,
    /// `[TOOL_CALLS][{..}]`, or `[TOOL_CALLS]name[ARGS]{..}`.
    Mistral,
    /// `name`, then arguments in a code fence, between DeepSeek's markers: V3, R1.
    DeepSeekV3,
    /// `name`, then arguments, between DeepSeek's markers: V3.1.
    DeepSeekV31,
    /// XML-like tags with DeepSeek's own prefix (DSML): V3.2.
    DeepSeekV32,
    /// DSML with calls in `<｜DSML｜tool_calls>`: DeepSeek-V4.
    DeepSeekV4,
    /// `functions.name:index`, then arguments, between Kimi's markers: Kimi K2, Kimi Linear.
    KimiK2,
    /// `<tool_call>name<arg_key>..</arg_key><arg_value>..</arg_value></tool_call>`: GLM-4.5 and
    /// later.
    Glm45,
    /// `<function=name><parameter=key>..</parameter></function>`: Qwen3-Coder.
    Qwen3Coder,
    /// `<|tool_call|>[{..}]<|/tool_call|>` or `functools[{..}]`: Phi-4.
    Phi4,
    /// Messages to functions in harmony channels: gpt-oss.
    Harmony,
}

/// Tool parser names, as other inference engines spell them.
const NAMES: &[(&str, ToolDialect)] = &[
    ("hermes", ToolDialect::Hermes),
    ("llama3_json", ToolDialect::Llama3Json),
    ("pythonic", ToolDialect::Pythonic),
    ("lfm2", ToolDialect::Lfm2),
    ("gemma4", ToolDialect::Gemma4),
    ("nemotron_json", ToolDialect::Nemotron),
    ("mistral", ToolDialect::Mistral),
    ("deepseek_v3", ToolDialect::DeepSeekV3),
    ("deepseek_v31", ToolDialect::DeepSeekV31),
    ("deepseek_v32", ToolDialect::DeepSeekV32),
    ("deepseek_v4", ToolDialect::DeepSeekV4),
    ("kimi_k2", ToolDialect::KimiK2),
    ("glm45", ToolDialect::Glm45),
    ("qwen3_coder", ToolDialect::Qwen3Coder),
    ("phi4_mini_json", ToolDialect::Phi4),
    ("openai", ToolDialect::Harmony),
];

impl ToolDialect {
    /// The dialect with this parser name.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, dialect)| *dialect)
    }

    /// All parser names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// Detects the dialect from the text of a chat template; Hermes if nothing matches.
    pub fn of_template(template: &str) -> Self {
        let has = |mark: &str| template.contains(mark);
        match () {
            () if has("<|channel|>") && has("<|message|>") => Self::Harmony,
            // V3.2 encloses calls in `function_calls` tags, V4 in `tool_calls` tags.
            () if has("｜DSML｜") && has("function_calls") => Self::DeepSeekV32,
            () if has("｜DSML｜") => Self::DeepSeekV4,
            () if has("<｜tool▁calls▁begin｜>") && has("```json") => Self::DeepSeekV3,
            () if has("<｜tool▁calls▁begin｜>") => Self::DeepSeekV31,
            () if has("<|tool_calls_section_begin|>") => Self::KimiK2,
            () if has("<|tool_call>call:") => Self::Gemma4,
            () if has("<|tool_call_start|>") || has("<|tool_list_start|>") => Self::Lfm2,
            () if has("<TOOLCALL>") => Self::Nemotron,
            () if has("<arg_key>") => Self::Glm45,
            () if has("<function=") && has("<parameter=") => Self::Qwen3Coder,
            () if has("<tool_call>") => Self::Hermes,
            () if has("[TOOL_CALLS]") => Self::Mistral,
            () if has("<|tool_call|>") || has("functools") => Self::Phi4,
            () if has("<|python_tag|>") => Self::Llama3Json,
            // Templates of Llama 3.2 and 4 show the object without a marker.
            () if (has("<|start_header_id|>") || has("<|header_start|>")) && has("\"parameters\"") => {
                Self::Llama3Json
            }
            () if has("<start_of_turn>") || has("pythonic") => Self::Pythonic,
            () => Self::Hermes,
        }
    }

    pub(crate) fn call_format(self) -> CallFormat {
        match self {
            Self::Hermes => CallFormat::Json(&HERMES),
            Self::Llama3Json => CallFormat::Json(&LLAMA3),
            Self::Mistral => CallFormat::Json(&MISTRAL),
            Self::DeepSeekV3 | Self::DeepSeekV31 => CallFormat::Json(&DEEPSEEK),
            Self::KimiK2 => CallFormat::Json(&KIMI_K2),
            Self::Phi4 => CallFormat::Json(&PHI4),
            Self::Glm45 => CallFormat::Tagged(&GLM),
            Self::Qwen3Coder => CallFormat::Tagged(&QWEN3_CODER),
            Self::DeepSeekV32 => CallFormat::Tagged(&DSML),
            Self::DeepSeekV4 => CallFormat::Tagged(&DSML_V4),
            Self::Nemotron => CallFormat::Json(&NEMOTRON),
            Self::Pythonic => CallFormat::Buffered(&PYTHON),
            Self::Lfm2 => CallFormat::Buffered(&LFM2),
            Self::Gemma4 => CallFormat::Buffered(&GEMMA4),
            Self::Harmony => CallFormat::Harmony,
        }
    }

    /// Control tokens that detokenization must keep, because they mark calls.
    pub fn marks(self) -> Vec<&'static str> {
        match self.call_format() {
            CallFormat::Json(marks) => {
                let CallBody::Named { before: _, between } = &marks.body else {
                    return marks.open.iter().chain(marks.decoration).copied().chain(marks.close).collect();
                };
                marks
                    .open
                    .iter()
                    .chain(marks.decoration)
                    .chain(*between)
                    .copied()
                    .chain(marks.close)
                    .collect()
            }
            CallFormat::Tagged(t) => {
                let own = [t.open, t.key, t.key_end, t.value, t.value_end, t.close, "｜DSML｜"];
                own.into_iter().chain(t.decoration.iter().copied()).collect()
            }
            CallFormat::Buffered(markers) => markers.control_tokens.to_vec(),
            CallFormat::Harmony => HARMONY_MARKERS.to_vec(),
        }
    }
}
