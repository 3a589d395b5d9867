//! Reasoning dialects: how model families mark the reasoning block of an answer.

/// How a model family marks its reasoning block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningDialect {
    /// `<think>…</think>`: DeepSeek R1 and derivatives, Qwen3, GLM.
    Think,
    /// `[THINK]…[/THINK]`: Mistral.
    Mistral,
    /// The harmony `analysis` channel: gpt-oss.
    Harmony,
    /// `<|channel>thought…<channel|>`: Gemma 4.
    Gemma4,
}

/// Reasoning parser names, as other inference engines spell them.
const NAMES: &[(&str, ReasoningDialect)] = &[
    ("think", ReasoningDialect::Think),
    ("deepseek_r1", ReasoningDialect::Think),
    ("qwen3", ReasoningDialect::Think),
    ("glm45", ReasoningDialect::Think),
    ("mistral", ReasoningDialect::Mistral),
    ("openai_gptoss", ReasoningDialect::Harmony),
    ("gemma4", ReasoningDialect::Gemma4),
];

impl ReasoningDialect {
    /// The dialect with this parser name.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, dialect)| *dialect)
    }

    /// All parser names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// Detects the dialect from the text of a chat template; `None` if the model does not reason.
    pub fn of_template(template: &str) -> Option<Self> {
        let has = |mark: &str| template.contains(mark);
        match () {
            () if has("<|channel|>") && has("<|message|>") => Some(Self::Harmony),
            () if has("<|channel>") => Some(Self::Gemma4),
            () if has("</think>") || has("<think>") => Some(Self::Think),
            () if has("[THINK]") => Some(Self::Mistral),
            () => None,
        }
    }

    /// Start and end markers of the reasoning block.
    pub fn marks(self) -> (&'static str, &'static str) {
        match self {
            Self::Think => ("<think>", "</think>"),
            Self::Mistral => ("[THINK]", "[/THINK]"),
            Self::Gemma4 => ("<|channel>thought", "<channel|>"),
            Self::Harmony => ("<|channel|>analysis<|message|>", "<|end|>"),
        }
    }
}
