//! [`Class`]: a model class of Hugging Face, and the text model inside a multimodal one. [`Rename`]: tensor
//! names that only one architecture uses.

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

/// A tensor name prefix of one architecture and its canonical replacement. `{}` in `to` is the
/// number of layers, which is the index of the first prediction layer.
#[derive(Clone, Copy, Debug)]
pub struct Rename {
    /// The prefix in the checkpoint.
    pub from: &'static str,
    /// The canonical prefix.
    pub to: &'static str,
}

impl Rename {
    /// The canonical name of a tensor. `None` if it does not have the prefix.
    pub fn apply(&self, name: &str, layers: usize) -> Option<String> {
        let rest = name.strip_prefix(self.from)?;
        Some(format!("{}{rest}", self.to.replace("{}", &layers.to_string())))
    }
}

impl Class {
    /// A text model.
    pub(crate) const fn text(name: &'static str, model_type: &'static str) -> Self {
        Self { name, model_type, text_of: None }
    }

    /// A text model with a vision tower beside it.
    pub(crate) const fn vision(name: &'static str, model_type: &'static str) -> Self {
        Self::multimodal(name, model_type, &["vision_tower.", "multi_modal_projector."])
    }

    /// A text model inside a multimodal one, whose other tensors have these name prefixes.
    pub(crate) const fn multimodal(
        name: &'static str,
        model_type: &'static str,
        left_out: &'static [&'static str],
    ) -> Self {
        Self { name, model_type, text_of: Some(Multimodal { config: "text_config", left_out }) }
    }
}
