//! [`Eagle3`]: the draft head of an EAGLE-3 checkpoint, for speculative decoding.
//!
//! One decoder layer over the target's features. Row `i` combines the features of token `i` with
//! the embedding of token `i + 1`:
//!
//! `x = h + attention([norm(embedding) ; norm(h)])`, `out = x + ffn(norm(x))`,
//! `logits = lm_head(norm(out))`
//!
//! `h` is a projection (`fc`) of the residual streams that enter three layers of the target, which
//! the target's program computes ([`Program::with_features`]). While drafting, `out` takes the
//! place of `h`. The head may have a smaller vocabulary; `d2t` of its checkpoint leads back.

use crate::arch::llama::LLAMA;
use crate::blocks::attention::Attention;
use crate::blocks::decoder::Norms;
use crate::blocks::feed_forward::FeedForward;
use crate::builder::config::Config;
use crate::builder::rope_config::RopeConfig;
use crate::builder::source::Source;
use crate::builder::{Builder, Logits};
use crate::error::{ProgramError, Result};
use crate::ir::program::{Program, Purpose, Tap};
use crate::ir::weight::Role;

/// Class names of EAGLE-3 heads in `architectures` of `config.json`.
const NAMES: [&str; 3] = ["LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM"];

/// An EAGLE-3 draft head.
#[derive(Clone, Debug, PartialEq)]
pub struct Eagle3 {
    /// Its layer, fed with features as hidden states.
    pub program: Program,
    /// Tokens that it can propose.
    pub vocab: usize,
    /// Layers of the target whose inputs make up the features.
    pub layers: [u32; 3],
}

impl Eagle3 {
    /// The tensor that only draft heads have: it projects the features of three target layers.
    pub const PROJECTION: &str = "fc.weight";

    /// Builds the head from its checkpoint, which must contain an embedding: its own, or that of
    /// the target under the same name. Fails, naming the key or tensor, if it does not fit the
    /// target.
    pub fn build(source: &Source, target: &Program) -> Result<Self> {
        let facts = Config::new(&source.config);
        let names = facts.texts("architectures")?.unwrap_or_default();
        if !names.first().is_some_and(|name| NAMES.contains(name)) || !source.has(Self::PROJECTION) {
            let why = format!("is {names:?} without `fc.weight`: not an EAGLE-3 head");
            return Err(facts.bad(
                "architectures",
                if source.has(Self::PROJECTION) { format!("is {names:?}") } else { why },
            ));
        }
        let config = &LLAMA.spelled_out(&source.config);
        let facts = Config::new(config);
        let layers = facts.size_or("num_hidden_layers", 1)?;
        if layers != 1 {
            return Err(facts.bad("num_hidden_layers", format!("is {layers}, an EAGLE-3 head has 1")));
        }
        let mut b = Builder::new(source, config, &target.architecture, Purpose::DraftHead)?;
        if b.program.vocab != target.vocab {
            let why = format!("is {}, that of the target {}", b.program.vocab, target.vocab);
            return Err(facts.bad("vocab_size", why));
        }
        b.program.max_positions = target.max_positions;
        let vocab = facts.size_or("draft_vocab_size", target.vocab)?;
        head(&mut b, vocab)?;
        let program = b.program;
        let fc = [program.hidden, 3 * target.hidden];
        match source.shape(Self::PROJECTION) {
            Some(found) if found != fc => {
                let (name, expected) = (Self::PROJECTION.to_owned(), fc.to_vec());
                return Err(ProgramError::Misshapen { name, expected, found });
            }
            _ => {}
        }
        check_unused(source, &program)?;
        Ok(Self { program, vocab, layers: feature_layers(Config::new(&source.config), target)? })
    }
}

fn head(b: &mut Builder<'_>, vocab: usize) -> Result<()> {
    let norms = Norms::rms(b.config)?;
    let bias = b.config.flag_or("attention_bias", false)?;
    let qk_norm = b.source.has("midlayer.self_attn.q_norm.weight").then_some(norms);
    let attention = Attention { bias, out_bias: bias, norms: qk_norm, ..Attention::read(b.config)? };
    let ffn = FeedForward::read(b.config)?;
    let rope = attention.rope(b, RopeConfig::read(b.config)?, 1.0)?;
    let embedding = b.embed_from("embed_tokens.weight", 1.0)?;
    let embedding = norms.row(b, embedding, "midlayer.input_layernorm")?;
    let state = b.hidden();
    let normed = norms.row(b, state, "midlayer.hidden_norm")?;
    let joined = b.concat(embedding, normed, 1)?;
    let y = attention.build_at(b, "midlayer.self_attn.", joined, rope, None)?;
    let x = b.add(state, y)?;
    let y = norms.row(b, x, "midlayer.post_attention_layernorm")?;
    let y = ffn.build(b, "midlayer.mlp.", y)?;
    let x = b.add(x, y)?;
    b.tap(Tap::OutOfLastLayer, x);
    let x = norms.row(b, x, "norm")?;
    b.tap(Tap::FinalNorm, x);
    let x = b.gather(x);
    let weight = b.weight("lm_head.weight", &[vocab, b.program.hidden], Role::Head)?;
    b.head(x, weight, vocab, Logits::PLAIN)?;
    Ok(())
}

/// The layers whose inputs are the features: as the config says, else the second, the middle and
/// the third from the end.
fn feature_layers(config: Config<'_>, target: &Program) -> Result<[u32; 3]> {
    let count = target.taps.iter().filter(|(tap, _)| matches!(tap, Tap::IntoLayer(_))).count();
    let key = "eagle_aux_hidden_state_layer_ids";
    let nested = config.object("eagle_config")?.unwrap_or(config);
    let given = nested.counts(key)?;
    let layers = match given[..] {
        [] if count < 4 => {
            let why = format!("has {count} layers, too few for the features of an EAGLE-3 head");
            return Err(ProgramError::config("num_hidden_layers", why));
        }
        [] => [2, count / 2, count - 3],
        [a, b, c] => [a, b, c],
        _ => return Err(nested.bad(key, "does not name three layers")),
    };
    if layers.iter().all(|layer| *layer < count) {
        Ok(layers.map(|layer| layer as u32))
    } else {
        Err(nested.bad(key, format!("names a layer beyond the target's {count}")))
    }
}

/// Fails if the checkpoint has a tensor that nothing uses.
fn check_unused(source: &Source, program: &Program) -> Result<()> {
    let Some(tensors) = &source.tensors else { return Ok(()) };
    let used = |name: &str| {
        ["fc.weight", "d2t", "t2d"].contains(&name)
            || name.ends_with(".rotary_emb.inv_freq")
            || program.weights.iter().any(|weight| weight.name == name)
    };
    let mut unused = tensors.keys().filter(|name| !used(name));
    match unused.next() {
        None => Ok(()),
        Some(name) => Err(ProgramError::Unused { name: name.clone(), count: 1 + unused.count() }),
    }
}
