//! [`Class`]: a model class of Hugging Face, and the text model inside a multimodal one.

/// A name under which Hugging Face has an architecture.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// The class in `architectures` of `config.json`.
    pub name: &'static str,
    /// `model_type` of its config; of a multimodal class, that of the text model.
    pub model_type: &'static str,
    /// How a multimodal checkpoint holds the text model; `None` if it is a text model.
    pub text_of: Option<Multimodal>,
}

/// The parts of a multimodal checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Multimodal {
    /// The config key of the text model's config.
    pub config: &'static str,
    /// Name prefixes of tensors that are not the text model's, without `model.`.
    pub left_out: &'static [&'static str],
}

impl Class {
    /// A text model.
    pub(crate) const fn text(name: &'static str, model_type: &'static str) -> Self {
        Self { name, model_type, text_of: None }
    }

    /// A text model with a vision tower beside it.
    pub(crate) const fn vision(name: &'static str, model_type: &'static str) -> Self {
        let left_out = &["vision_tower.", "multi_modal_projector."];
        Self { name, model_type, text_of: Some(Multimodal { config: "text_config", left_out }) }
    }
}
