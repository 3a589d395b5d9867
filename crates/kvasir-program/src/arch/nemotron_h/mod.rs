//! Nemotron-H: one mixer per layer, `x += mixer(norm(x))`: Mamba-2, attention without RoPE, an MLP
//! or a MoE with relu².

pub(crate) mod metadata;

use crate::arch::Architecture;
use crate::arch::class::{Class, Rename};
use crate::arch::config_defaults::{fill, is_missing};
use crate::arch::nemotron_h::metadata::{KINDS, MAMBA, MOE, TENSORS, TRANSFORMS};
use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::mamba2::{GatedNorm, Mamba2, dt_limits};
use crate::blocks::routed::scores;
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::heads::HEADS;
use crate::ir::activation::Activation;
use crate::ir::moe::{Experts, Groups, Routing, Score};
use crate::ir::value::ValueId;
use crate::ir::weight::{Matrices, Matrix, Role};
use serde_json::{Map, Value as Json};

pub(crate) static NEMOTRON_H: Architecture = Architecture {
    classes: &[Class::text("NemotronHForCausalLM", "nemotron_h")],
    renames: &[
        Rename { from: "backbone.embeddings.", to: "model.embed_tokens." },
        Rename { from: "backbone.norm_f.", to: "model.norm." },
        Rename { from: "backbone.layers.", to: "model.layers." },
    ],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["nemotron_h", "nemotron_h_moe"],
        written: |config| {
            let experts = config.get("n_routed_experts").and_then(Json::as_u64).unwrap_or(0);
            if experts > 0 { "nemotron_h_moe" } else { "nemotron_h" }
        },
        claims: |_| true,
        tensors: &[TENSORS],
        transforms: &[TRANSFORMS],
        rules: &[HEADS, KINDS, MAMBA, MOE],
    },
    models: "Nemotron-H, Nemotron 3",
    specifics: "one mixer per layer: Mamba-2, attention without RoPE, relu² MLP or MoE",
    defaults,
    target,
    prediction: None,
};

/// The mixer of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MixerKind {
    Mamba,
    Attention,
    Mlp,
    Moe,
}

impl MixerKind {
    /// The mixers of all layers, from `hybrid_override_pattern` or `layers_block_type`.
    pub(crate) fn read_all(c: Config<'_>) -> Result<Vec<Self>> {
        let layers = c.number("num_hidden_layers")?;
        let (key, kinds) = match c.text("hybrid_override_pattern")? {
            Some(pattern) => ("hybrid_override_pattern", pattern.chars().map(Self::of_char).collect()),
            None => {
                let types = c.texts("layers_block_type")?.or(c.texts("layer_types")?);
                let types = types.ok_or_else(|| c.bad("hybrid_override_pattern", "is missing"))?;
                ("layers_block_type", types.into_iter().map(Self::of_name).collect::<Option<Vec<_>>>())
            }
        };
        let kinds = kinds.ok_or_else(|| c.bad(key, "has a layer kind that is not supported"))?;
        if kinds.len() != layers {
            return Err(c.bad(key, format!("has {} entries for {layers} layers", kinds.len())));
        }
        Ok(kinds)
    }

    fn of_char(kind: char) -> Option<Self> {
        match kind {
            'M' => Some(Self::Mamba),
            '*' => Some(Self::Attention),
            '-' => Some(Self::Mlp),
            'E' => Some(Self::Moe),
            _ => None,
        }
    }

    fn of_name(kind: &str) -> Option<Self> {
        match kind {
            "mamba" | "linear_attention" => Some(Self::Mamba),
            "attention" | "full_attention" => Some(Self::Attention),
            "mlp" => Some(Self::Mlp),
            "moe" => Some(Self::Moe),
            _ => None,
        }
    }
}

fn defaults(config: &mut Map<String, Json>) {
    let eps = config.get("layer_norm_epsilon").or_else(|| config.get("norm_eps")).cloned();
    if is_missing(config, "rms_norm_eps") {
        config.insert("rms_norm_eps".to_owned(), eps.unwrap_or_else(|| 1e-5.into()));
    }
    let values = [
        ("tie_word_embeddings", false.into()),
        ("use_conv_bias", true.into()),
        ("mlp_hidden_act", "relu2".into()),
        ("n_groups", 8.into()),
        ("conv_kernel", 4.into()),
        ("norm_topk_prob", true.into()),
    ];
    fill(config, values);
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let (c, norms) = (b.config, Norms::rms(b.config)?);
    c.require_text("mlp_hidden_act", "relu2")?;
    let kinds = MixerKind::read_all(c)?;
    let bias = c.flag_or("attention_bias", false)?;
    let attention = Attention { bias, out_bias: bias, ..Attention::read(c)? };
    let mamba = if kinds.contains(&MixerKind::Mamba) { Some(mamba(c, norms)?) } else { None };
    let moe = if kinds.contains(&MixerKind::Moe) { Some(Moe::read(c)?) } else { None };
    decoder(b, 1.0, norms, |b, i, x| {
        let p = format!("model.layers.{i}.mixer.");
        let h = norms.row(b, x, &format!("model.layers.{i}.norm"))?;
        let h = match (kinds[i], &mamba, &moe) {
            (MixerKind::Mamba, Some(mamba), _) => mamba.build(b, &p, h)?,
            (MixerKind::Moe, _, Some(moe)) => moe.build(b, &p, h)?,
            (MixerKind::Attention, ..) => attention.build_at(b, &p, h, None, None)?,
            _ => mlp(b, &p, b.config.size("intermediate_size")?, h)?,
        };
        b.add(x, h)
    })
}

fn mamba(c: Config<'_>, norms: Norms) -> Result<Mamba2> {
    Ok(Mamba2 {
        heads: c.size("mamba_num_heads")?,
        head_dim: c.size("mamba_head_dim")?,
        groups: c.size("n_groups")?,
        state_dim: c.size("ssm_state_size")?,
        kernel: c.size("conv_kernel")?,
        conv_bias: c.flag_or("use_conv_bias", true)?,
        proj_bias: c.flag_or("mamba_proj_bias", false)? || c.flag_or("use_bias", false)?,
        dt_limits: dt_limits(c)?,
        norm: Some(GatedNorm { eps: norms.eps, before_gate: false }),
        factors: [1.0; 5],
    })
}

/// `down(relu(up(x))²)`.
fn mlp(b: &mut Builder<'_>, p: &str, inner: usize, x: ValueId) -> Result<ValueId> {
    let (hidden, bias) = (b.program.hidden, b.config.flag_or("mlp_bias", false)?);
    let up = b.matrix(&format!("{p}up_proj"), inner, hidden, bias, Role::Matrix)?;
    let y = b.linear(x, up)?;
    let y = b.gate(y, y, Activation::Relu)?;
    let down = b.matrix(&format!("{p}down_proj"), hidden, inner, bias, Role::Matrix)?;
    b.linear(y, down)
}

/// MoE of experts without a gate, routed as in DeepSeek-V3, and a shared expert.
struct Moe {
    count: usize,
    inner: usize,
    /// Width of the shared expert; 0 if there is none.
    shared: usize,
    routing: Routing,
}

impl Moe {
    fn read(c: Config<'_>) -> Result<Self> {
        if c.opt_size("moe_latent_size")?.is_some() {
            return Err(c.bad("moe_latent_size", "is set: experts of a latent size are not supported"));
        }
        let groups = Groups { count: c.size_or("n_group", 1)?, keep: c.size_or("topk_group", 1)? };
        let routing = Routing {
            score: Score::Sigmoid,
            top_k: c.size("num_experts_per_tok")?,
            correction: None,
            groups: (groups.count > 1).then_some(groups),
            renormalize: c.flag_or("norm_topk_prob", true)?.then_some(1e-20),
            scale: c.float_or("routed_scaling_factor", 1.0)? as f32,
            token_table: None,
            expert_scale: None,
        };
        let shared = c.count("n_shared_experts")? * c.count("moe_shared_expert_intermediate_size")?;
        let (count, inner) = (c.number("n_routed_experts")?, c.size("moe_intermediate_size")?);
        Ok(Self { count, inner, shared, routing })
    }

    fn build(&self, b: &mut Builder<'_>, p: &str, x: ValueId) -> Result<ValueId> {
        let scores = scores(b, x, &format!("{p}gate"), self.count, false)?;
        let name = format!("{p}gate.e_score_correction_bias");
        let correction = Some(b.weight(&name, &[self.count], Role::Router)?);
        let routes = b.route(scores, Routing { correction, ..self.routing })?;
        let experts = self.experts(b, p)?;
        let y = b.mixture(x, routes, experts)?;
        if self.shared == 0 {
            return Ok(y);
        }
        let shared = mlp(b, &format!("{p}shared_experts."), self.shared, x)?;
        b.add(y, shared)
    }

    /// relu(v)² = relu(v) * v, so the up matrix is also the gate matrix.
    fn experts(&self, b: &mut Builder<'_>, p: &str) -> Result<Experts> {
        let hidden = b.program.hidden;
        let mut first: Option<[Matrix; 2]> = None;
        for expert in 0..self.count {
            let p = format!("{p}experts.{expert}.");
            let up = b.matrix(&format!("{p}up_proj"), self.inner, hidden, false, Role::Experts)?;
            let down = b.matrix(&format!("{p}down_proj"), hidden, self.inner, false, Role::Experts)?;
            first.get_or_insert([up, down]);
        }
        let Some([up, down]) = first else { return Err(b.config.bad("n_routed_experts", "is 0")) };
        let all =
            |first| Matrices { count: self.count, first, weight_stride: 2, offset_stride: 0, bias_stride: 0 };
        let activation = Activation::Relu;
        Ok(Experts { gate: all(up), up: all(up), down: all(down), activation, first: 0 })
    }
}
