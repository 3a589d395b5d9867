//! Mapping between GGUF and Hugging Face tensor names, per architecture, in both directions.

use kvasir_program::{Architecture, COMMON_TENSORS, TensorName};

/// Upper bound of the expert number in a tensor's name.
const MAX_EXPERT: usize = 65_536;

/// Hugging Face name of a GGUF tensor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HfName {
    /// The whole tensor has this name.
    Whole(String),
    /// One tensor per expert (slowest dimension): name parts before and after the expert number.
    PerExpert(String, String),
    /// The tensor's values are part of the config.
    InConfig,
}

/// Tensor naming of one architecture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Naming {
    own: &'static [&'static [TensorName]],
}

/// A layer's tensor name: the layer's number and the rest.
fn in_layer<'a>(name: &'a str, prefix: &str) -> Option<(u32, &'a str)> {
    let (layer, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    Some((layer.parse().ok()?, rest))
}

/// A name's stem and its suffix, `weight` or `bias`.
fn suffixed(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('.').filter(|(_, suffix)| matches!(*suffix, "weight" | "bias"))
}

fn gguf_side(name: &TensorName) -> &'static str {
    match name {
        TensorName::Stem(gguf, _)
        | TensorName::Irregular(gguf, _)
        | TensorName::Outside(gguf, _)
        | TensorName::InConfig(gguf) => gguf,
    }
}

impl Naming {
    pub(crate) fn of(architecture: &Architecture) -> Self {
        Self { own: architecture.gguf.tensors }
    }

    /// The architecture's names, and those common ones that it does not hide.
    fn names(self) -> impl Iterator<Item = &'static TensorName> {
        let own = move || self.own.iter().copied().flatten();
        let hidden = move |name: &TensorName| own().any(|own| gguf_side(own) == gguf_side(name));
        own().chain(COMMON_TENSORS.iter().filter(move |name| !hidden(name)))
    }

    /// GGUF name of a Hugging Face tensor, and its expert number if it belongs to a stack.
    pub(crate) fn to_gguf(self, name: &str) -> Option<(String, Option<usize>)> {
        let layer = in_layer(name, "model.layers.");
        self.names().find_map(|names| match names {
            TensorName::Outside(gguf, hf) => (*hf == name).then(|| ((*gguf).to_owned(), None)),
            TensorName::InConfig(_) => None,
            TensorName::Irregular(gguf, hf) => {
                let (layer, rest) = layer?;
                (*hf == rest).then(|| (format!("blk.{layer}.{gguf}"), None))
            }
            TensorName::Stem(gguf, hf) => {
                let (layer, rest) = layer?;
                let (stem, suffix) = suffixed(rest)?;
                let expert = match hf.split_once("{}") {
                    None => (*hf == stem).then_some(None)?,
                    Some((before, after)) => {
                        let expert = stem.strip_prefix(before)?.strip_suffix(after)?;
                        Some(expert.parse().ok().filter(|&e: &usize| e < MAX_EXPERT)?)
                    }
                };
                Some((format!("blk.{layer}.{gguf}.{suffix}"), expert))
            }
        })
    }

    /// Hugging Face name of a GGUF tensor, or `None` if unknown.
    pub(crate) fn to_hf(self, name: &str) -> Option<HfName> {
        let layer = in_layer(name, "blk.");
        self.names().find_map(|names| match names {
            TensorName::Outside(gguf, hf) => (*gguf == name).then(|| HfName::Whole((*hf).to_owned())),
            TensorName::InConfig(gguf) => (*gguf == name).then_some(HfName::InConfig),
            TensorName::Irregular(gguf, hf) => {
                let (layer, rest) = layer?;
                (*gguf == rest).then(|| HfName::Whole(format!("model.layers.{layer}.{hf}")))
            }
            TensorName::Stem(gguf, hf) => {
                let (layer, rest) = layer?;
                let (_, suffix) = suffixed(rest).filter(|(stem, _)| stem == gguf)?;
                Some(match hf.split_once("{}") {
                    None => HfName::Whole(format!("model.layers.{layer}.{hf}.{suffix}")),
                    Some((before, after)) => {
                        let before = format!("model.layers.{layer}.{before}");
                        HfName::PerExpert(before, format!("{after}.{suffix}"))
                    }
                })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every name of every architecture leads back to itself, so no table has a name twice.
    #[test]
    fn names_map_both_ways() {
        for architecture in Architecture::all() {
            let naming = Naming::of(architecture);
            for names in naming.names() {
                let gguf = match names {
                    TensorName::Outside(gguf, _) => (*gguf).to_owned(),
                    TensorName::Irregular(gguf, _) => format!("blk.7.{gguf}"),
                    TensorName::Stem(gguf, _) => format!("blk.7.{gguf}.weight"),
                    TensorName::InConfig(gguf) => {
                        assert_eq!(naming.to_hf(gguf), Some(HfName::InConfig));
                        continue;
                    }
                };
                let (hf, expert) = match naming.to_hf(&gguf) {
                    Some(HfName::Whole(hf)) => (hf, None),
                    Some(HfName::PerExpert(before, after)) => (format!("{before}12{after}"), Some(12)),
                    other => panic!("{}: {gguf}: {other:?}", architecture.name()),
                };
                let (back, of_stack) = naming.to_gguf(&hf).unwrap();
                // Where an architecture gives a common Hugging Face name another GGUF name, the
                // common GGUF name is still read.
                let own = naming.own.iter().copied().flatten().any(|own| back.contains(gguf_side(own)));
                assert!(back == gguf || own, "{}: {gguf} becomes {hf}, then {back}", architecture.name());
                assert_eq!(of_stack, expert, "{}: {hf}", architecture.name());
            }
        }
    }

    fn naming(class: &str) -> Naming {
        Naming::of(Architecture::all().find(|known| known.name() == class).unwrap())
    }

    #[test]
    fn tensor_names_depend_on_the_architecture() {
        let whole = |s: &str| Some(HfName::Whole(s.into()));
        let llama = naming("LlamaForCausalLM");
        assert_eq!(llama.to_hf("blk.3.attn_q.weight"), whole("model.layers.3.self_attn.q_proj.weight"));
        assert_eq!(llama.to_hf("blk.3.attn_q.wight"), None);
        assert_eq!(llama.to_hf("blk.x.attn_q.weight"), None);
        let gemma = naming("Gemma3ForCausalLM");
        assert_eq!(
            gemma.to_hf("blk.0.ffn_norm.weight"),
            whole("model.layers.0.pre_feedforward_layernorm.weight")
        );
        let mixtral = naming("MixtralForCausalLM");
        assert_eq!(
            mixtral.to_hf("blk.1.ffn_up_exps.weight"),
            Some(HfName::PerExpert("model.layers.1.block_sparse_moe.experts.".into(), ".w3.weight".into()))
        );
    }
}
