//! ModernBERT: a pre-norm encoder with rotary embeddings, GeGLU, and alternating local
//! (sliding-window) and global attention.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::is_missing;
use crate::blocks::classifier::Classifier;
use crate::blocks::encoder::{EncoderHeads, activation_function, limit_max_positions, pooling};
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::encoder::{BIDIRECTIONAL, LOCAL_ATTENTION, POOLING};
use crate::gguf::tensor_name::TensorName::{Outside, Stem};
use crate::ir::activation::Activation;
use crate::ir::elementwise::Elementwise;
use crate::ir::layer::LayerId;
use crate::ir::op::Pairs;
use crate::ir::pooling::Pooling;
use crate::ir::program::Tap;
use crate::ir::rope::{Rope, RopeId};
use crate::ir::value::ValueId;
use crate::ir::weight::Role;
use serde_json::{Map, Value as Json};

pub(crate) static MODERN_BERT: Architecture = Architecture {
    classes: &[
        Class::text("ModernBertModel", "modernbert"),
        Class::text("ModernBertForSequenceClassification", "modernbert"),
    ],
    renames: &[],
    config_tensors: &[],
    is_encoder: true,
    gguf: Gguf {
        names: &["modern-bert"],
        written: |_| "modern-bert",
        claims: |_| true,
        tensors: &[&[
            Outside("token_embd.weight", "model.embeddings.tok_embeddings.weight"),
            Outside("token_embd_norm.weight", "model.embeddings.norm.weight"),
            Outside("output_norm.weight", "model.final_norm.weight"),
            Stem("attn_norm", "attn_norm"),
            Stem("attn_qkv", "attn.Wqkv"),
            Stem("attn_output", "attn.Wo"),
            Stem("ffn_norm", "mlp_norm"),
            Stem("ffn_up", "mlp.Wi"),
            Stem("ffn_down", "mlp.Wo"),
            Outside("cls.weight", "classifier.dense.weight"),
            Outside("cls.bias", "classifier.dense.bias"),
            Outside("cls.norm.weight", "classifier.norm.weight"),
            Outside("cls.output.weight", "classifier.out_proj.weight"),
            Outside("cls.output.bias", "classifier.out_proj.bias"),
        ]],
        transforms: &[],
        rules: &[POOLING, BIDIRECTIONAL, LOCAL_ATTENTION],
    },
    models: "ModernBERT, GTE ModernBERT, Nomic ModernBERT Embed; rerankers based on them",
    specifics: "encoder: RoPE, alternating global and bidirectional sliding-window attention",
    defaults,
    target,
    prediction: None,
};

/// Fills in the RoPE thetas, which newer configs have in `rope_parameters`, the interval of global
/// layers and the window. Copies `norm_eps`, the epsilon of all norms, to `layer_norm_eps`.
fn defaults(config: &mut Map<String, Json>) {
    let epsilon = config.get("norm_eps").filter(|eps| !eps.is_null()).cloned();
    if let Some(epsilon) = epsilon {
        config.insert("layer_norm_eps".to_owned(), epsilon);
    }
    let parameters = config.get("rope_parameters").cloned().unwrap_or_default();
    let theta = |kind: &str| parameters.get(kind).and_then(|of| of.get("rope_theta")).cloned();
    let global = theta("full_attention").unwrap_or_else(|| 160_000.0.into());
    if is_missing(config, "global_rope_theta") {
        config.insert("global_rope_theta".to_owned(), global);
    }
    if is_missing(config, "local_rope_theta") {
        // An explicit null means the global theta; an absent key means 10,000.
        let default = if config.contains_key("local_rope_theta") {
            config["global_rope_theta"].clone()
        } else {
            10_000.0.into()
        };
        config.insert("local_rope_theta".to_owned(), theta("sliding_attention").unwrap_or(default));
    }
    for (key, value) in [("global_attn_every_n_layers", 3.into()), ("local_attention", 128.into())] {
        config.entry(key).or_insert(value);
    }
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    check_supported(c)?;
    limit_max_positions(b, b.program.max_positions)?;
    let heads = EncoderHeads::read(c)?;
    let eps = c.amount_or("layer_norm_eps", 1e-5)?;
    let half_window = (c.size("local_attention")? / 2) as u32;
    let layer = ModernBertLayer {
        heads,
        intermediate: c.size("intermediate_size")?,
        activation: match activation_function(c, "hidden_activation")? {
            Elementwise::Gelu => Activation::Gelu,
            Elementwise::GeluTanh => Activation::GeluTanh,
            Elementwise::Silu => Activation::Silu,
            other => return Err(c.bad("hidden_activation", format!("is {other:?}, which is not supported"))),
        },
        eps,
        global: LayerAttention {
            kv: heads.kv_layer(b, None),
            rope: rope(b, "global_rope_theta", heads.dim)?,
        },
        local: LayerAttention {
            kv: heads.kv_layer(b, Some(half_window)),
            rope: rope(b, "local_rope_theta", heads.dim)?,
        },
    };
    let mut x = b.embed_from("model.embeddings.tok_embeddings.weight", 1.0)?;
    x = b.layer_norm(x, "model.embeddings.norm", false, eps)?;
    for (i, is_global) in global_layers(c)?.into_iter().enumerate() {
        b.tap(Tap::IntoLayer(i as u32), x);
        x = layer.build(b, i, is_global, x)?;
    }
    b.tap(Tap::OutOfLastLayer, x);
    x = b.layer_norm(x, "model.final_norm", false, eps)?;
    b.tap(Tap::FinalNorm, x);
    if Classifier::is_present(b)? {
        let pooled = b.pool(x, classifier_pooling(c)?);
        let function = activation_function(c, "classifier_activation")?;
        let dense_bias = c.flag_or("classifier_bias", false)?;
        Classifier { function, dense_bias, norm_eps: Some(eps) }.build(b, pooled)?;
    } else {
        let pooling = pooling(c)?;
        b.pool(x, pooling);
    }
    Ok(())
}

/// Refuses biases, which no published model has.
fn check_supported(c: Config<'_>) -> Result<()> {
    for key in ["attention_bias", "mlp_bias", "norm_bias"] {
        if c.flag_or(key, false)? {
            return Err(c.bad(key, "is true, which is not supported"));
        }
    }
    Ok(())
}

/// The pooling of a cross-encoder: the first token, or the mean.
fn classifier_pooling(c: Config<'_>) -> Result<Pooling> {
    let name = c.text("classifier_pooling")?.unwrap_or("cls");
    let known = Pooling::named(name).filter(|pooling| *pooling != Pooling::Last);
    known.ok_or_else(|| c.bad("classifier_pooling", format!("is {name:?}, not cls or mean")))
}

/// Whether each layer is global: by `layer_types`, else every n-th from layer 0 on.
fn global_layers(c: Config<'_>) -> Result<Vec<bool>> {
    let (layers, every) = (c.number("num_hidden_layers")?, c.size("global_attn_every_n_layers")?);
    let kinds = [("full_attention", true), ("sliding_attention", false)];
    let listed = c.by_layer_kind("layer_types", layers, kinds)?;
    Ok(listed.unwrap_or_else(|| (0..layers).map(|i| i.is_multiple_of(every)).collect()))
}

/// Adds a rotary embedding with the theta of the config key `key`.
fn rope(b: &mut Builder<'_>, key: &str, dim: usize) -> Result<RopeId> {
    let theta = b.config.opt_positive(key)?.ok_or_else(|| b.config.bad(key, "is missing"))?;
    let inv_freq = (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64) as f32).collect();
    Ok(b.rope(Rope { inv_freq, amplitude: 1.0, long: None, temperature: None }))
}

/// K/V layout and rotary embedding of the global layers, or of the local ones.
#[derive(Clone, Copy)]
struct LayerAttention {
    kv: LayerId,
    rope: RopeId,
}

/// Sizes and functions that all layers share.
struct ModernBertLayer {
    heads: EncoderHeads,
    intermediate: usize,
    activation: Activation,
    eps: f64,
    global: LayerAttention,
    local: LayerAttention,
}

impl ModernBertLayer {
    /// x += attention(norm(x)); x += down(act(gate) * up). Layer 0 has no norm before attention, as
    /// the embedding is already normalized.
    fn build(&self, b: &mut Builder<'_>, i: usize, is_global: bool, x: ValueId) -> Result<ValueId> {
        let (p, hidden) = (format!("model.layers.{i}."), b.program.hidden);
        let h = if i == 0 { x } else { b.layer_norm(x, &format!("{p}attn_norm"), false, self.eps)? };
        let y = self.attention(b, &p, if is_global { self.global } else { self.local }, h)?;
        let x = b.add(x, y)?;
        let h = b.layer_norm(x, &format!("{p}mlp_norm"), false, self.eps)?;
        let gate_up = b.matrix(&format!("{p}mlp.Wi"), 2 * self.intermediate, hidden, false, Role::Matrix)?;
        let gate = b.linear(h, gate_up.slice_outputs(0..self.intermediate))?;
        let up = b.linear(h, gate_up.slice_outputs(self.intermediate..2 * self.intermediate))?;
        let y = b.gate(gate, up, self.activation)?;
        let down = b.matrix(&format!("{p}mlp.Wo"), hidden, self.intermediate, false, Role::Matrix)?;
        let y = b.linear(y, down)?;
        b.add(x, y)
    }

    fn attention(
        &self,
        b: &mut Builder<'_>,
        p: &str,
        LayerAttention { kv, rope }: LayerAttention,
        h: ValueId,
    ) -> Result<ValueId> {
        let hidden = b.program.hidden;
        let qkv = b.matrix(&format!("{p}attn.Wqkv"), 3 * hidden, hidden, false, Role::Matrix)?;
        let mut part = |n: usize| b.linear(h, qkv.slice_outputs(n * hidden..(n + 1) * hidden));
        let [q, k, v] = [part(0)?, part(1)?, part(2)?];
        let q = b.rotary(q, self.heads.count, 0, rope, Pairs::Half)?;
        let k = b.rotary(k, self.heads.count, 0, rope, Pairs::Half)?;
        let y = self.heads.attend(b, kv, [q, k, v])?;
        let out = b.matrix(&format!("{p}attn.Wo"), hidden, hidden, false, Role::Matrix)?;
        b.linear(y, out)
    }
}
