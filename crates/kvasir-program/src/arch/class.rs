//! [`Class`]: a model class of Hugging Face, the text model inside a multimodal one, and tensors that it
//! names in another way.

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

/// Tensor names of Hugging Face that are read under other names: `to` replaces the prefix `from`. `{}`
/// stands for the number of layers, which is the number of the first prediction layer.
#[derive(Clone, Copy, Debug)]
pub struct Rename {
    /// The prefix in the file.
    pub from: &'static str,
    /// Its replacement.
    pub to: &'static str,
}

impl Rename {
    /// The new name of a tensor, if it has the prefix.
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

    /// A text model with the parts of these name prefixes beside it.
    pub(crate) const fn multimodal(
        name: &'static str,
        model_type: &'static str,
        left_out: &'static [&'static str],
    ) -> Self {
        Self { name, model_type, text_of: Some(Multimodal { config: "text_config", left_out }) }
    }
}
