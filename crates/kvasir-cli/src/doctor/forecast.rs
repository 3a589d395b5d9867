//! Predictions about a model before it is loaded: whether it fits into memory, how many tokens of
//! context fit beside it, and how long the first token of a long prompt takes.
//!
//! The time is the roofline bound of a prefill, operations over the measured peak of their number
//! type. The benchmarks reach 50 to 78 % of that peak (`docs/benchmarks.md`), so the bound and
//! twice the bound are given. Weights are read far less often than they are multiplied, so
//! bandwidth does not matter.

use kvasir::{EngineConfig, KvType, MemoryDivision, OpenedModel, Precision};
use kvasir_cpu::MachineLimits;
use kvasir_formats::{Checkpoint, DType};
use kvasir_program::{Op, Program, Role};
use std::fmt;

const GB: f64 = 1e9;
/// Tokens of the prompt whose first token is predicted, unless the model takes fewer.
const PROMPT: usize = 8192;

/// Predictions of a model on this machine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forecast {
    /// Bytes of the weights as stored, with those of the draft model.
    pub(crate) stored: u64,
    /// Bytes of memory that are free, if known.
    pub(crate) free: Option<u64>,
    /// Longest context of the model in tokens.
    pub(crate) longest: usize,
    /// Division of the memory that the weights leave; `None` if that memory is unknown or holds
    /// less than one sequence.
    pub(crate) division: Option<MemoryDivision>,
    /// Tokens of the predicted prompt, and the least seconds to its first token.
    pub(crate) first_token: Option<(usize, f64)>,
}

impl Forecast {
    /// Predicts from the headers of the model files. `kv` is the data type of K/V, `config` the
    /// configuration of the engine; `peaks` are the arithmetic limits, if measured.
    pub(crate) fn of(
        opened: &OpenedModel,
        kv: KvType,
        free: Option<u64>,
        config: &EngineConfig,
        peaks: Option<&MachineLimits>,
    ) -> Self {
        let target = &opened.model.target;
        let stored = opened.stored_bytes();
        // Ignores a configured capacity: the forecast reports what the memory holds.
        let config = EngineConfig { kv_capacity: None, ..config.clone() };
        let division = free.and_then(|free| opened.memory_division(&config, kv, Some(free), None).ok());
        let prompt = PROMPT.min(target.max_positions);
        Self {
            stored,
            free,
            longest: target.max_positions,
            division,
            first_token: peaks.map(|peaks| (prompt, prompt_seconds(opened, prompt as f64, peaks))),
        }
    }

    /// Longest context in tokens that the model supports and a division of the memory holds.
    pub(crate) fn context(&self, division: &MemoryDivision) -> u64 {
        u64::from(division.slots).min(self.longest as u64)
    }

    /// Whether the weights fit; `None` if the free memory is unknown.
    pub(crate) fn fits(&self) -> Option<bool> {
        self.free.map(|free| self.stored <= free)
    }
}

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weights of {:.2} GB", self.stored as f64 / GB)?;
        match (self.free, self.fits()) {
            (Some(free), Some(true)) => write!(f, " fit into {:.1} GB of free memory", free as f64 / GB)?,
            (Some(free), _) => write!(f, " do not fit into {:.1} GB of free memory", free as f64 / GB)?,
            (None, _) => write!(f, ", free memory unknown")?,
        }
        if let Some(division) = &self.division {
            let (slots, context) = (division.slots, self.context(division));
            write!(f, "; room for {slots} tokens of K and V, contexts of up to {context}")?;
            division.windows.iter().try_for_each(|window| write!(f, "; {window}"))?;
            division.states.iter().try_for_each(|states| write!(f, "; {states}"))?;
        }
        match self.first_token {
            Some((prompt, seconds)) => {
                write!(f, "; first token of a {prompt}-token prompt after {}", Range(seconds, seconds * 2.0))
            }
            None => Ok(()),
        }
    }
}

/// A range of seconds, with one digit where that says something.
pub(crate) struct Range(pub(crate) f64, pub(crate) f64);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(low, high) = self;
        match *high {
            high if high < 0.1 => write!(f, "less than 0.1 s"),
            high if high < 10.0 => write!(f, "{low:.1} to {high:.1} s"),
            high => write!(f, "{low:.0} to {high:.0} s"),
        }
    }
}

/// The default K/V data type, and the limits of the arithmetic that the CPU backend uses for a
/// model.
pub(crate) fn limits_of(
    opened: &OpenedModel,
    requested: Precision,
    peaks: MachineLimits,
) -> (KvType, MachineLimits) {
    // A model whose weights cannot be read fails when it is loaded.
    let least = Precision::least(&opened.model.target, &opened.checkpoint).unwrap_or(requested);
    match requested.min(least) {
        Precision::Auto => (KvType::Bf16, peaks),
        Precision::Bf16x2 => (KvType::F32, MachineLimits { bf16: peaks.bf16 / 2.0, ..peaks }),
        Precision::F32 => (KvType::F32, MachineLimits { integer: peaks.f32, bf16: peaks.f32, ..peaks }),
    }
}

/// Bytes of K/V per token: a draft model keeps its own for every token of the target.
pub(super) fn slot_bytes(opened: &OpenedModel, kv: KvType) -> usize {
    let drafts = opened.draft().map_or(0, |(program, _)| kv.slot_bytes(&program.layers));
    (kv.slot_bytes(&opened.model.target.layers) + drafts).max(1)
}

/// Least seconds until a prompt has its first token. A draft model reads the prompt, too.
fn prompt_seconds(opened: &OpenedModel, tokens: f64, peaks: &MachineLimits) -> f64 {
    let of = |program, checkpoint| prefill_seconds(program, checkpoint, tokens, peaks);
    let drafts = opened.draft().map_or(0.0, |(program, checkpoint)| of(program, checkpoint));
    of(&opened.model.target, &opened.checkpoint) + drafts
}

/// Least seconds of a prefill of `tokens` tokens, on the peaks of the number types of its weights.
fn prefill_seconds(target: &Program, checkpoint: &Checkpoint, tokens: f64, peaks: &MachineLimits) -> f64 {
    // A weight may be stored in parts, such as one per expert: they have the type of most weights.
    let largest = checkpoint.tensors().max_by_key(|tensor| tensor.bytes.len());
    let usual = largest.map(|tensor| tensor.dtype);
    let chosen = chosen_experts(target);
    let mut seconds = 0.0;
    for weight in &target.weights {
        let share = match weight.role {
            Role::Matrix | Role::Router => 1.0,
            Role::Experts => chosen,
            // The LM head is computed for one token; the others are no matrix products.
            _ => continue,
        };
        let numbers = weight.shape.iter().product::<usize>() as f64;
        let peak = match checkpoint.tensor(&weight.name).map(|tensor| tensor.dtype).or(usual) {
            Some(DType::F32 | DType::F16) => peaks.f32,
            Some(DType::BF16) => peaks.bf16,
            _ => peaks.integer,
        };
        seconds += 2.0 * numbers * share * tokens / peak;
    }
    let recurrent: usize = target.ops.iter().map(|op| target.recurrent_multiply_adds(op)).sum();
    seconds + attention_operations(target, tokens) / peaks.bf16 + 2.0 * recurrent as f64 * tokens / peaks.f32
}

/// Operations of causal attention over a prompt.
fn attention_operations(target: &Program, tokens: f64) -> f64 {
    let of = |op: &Op| match op {
        Op::UpdateAndAttend { q, layer, .. } => {
            let facts = target.layers.get(layer.0 as usize)?;
            let heads = target.value(*q).width() / facts.key_dim.max(1);
            let window = facts.window.map_or(tokens, |window| tokens.min(f64::from(window)));
            // Positions up to the window see all before them, the rest a window.
            let pairs = window * window / 2.0 + (tokens - window) * window;
            Some(2.0 * (heads * (facts.key_dim + facts.value_dim)) as f64 * pairs)
        }
        _ => None,
    };
    target.ops.iter().filter_map(of).sum()
}

/// Share of the experts that a token activates.
pub(super) fn chosen_experts(target: &Program) -> f64 {
    let share = target.ops.iter().find_map(|op| match op {
        Op::Mixture { .. } => Some(target.top_k(op) as f64 / target.routed_experts(op).max(1) as f64),
        _ => None,
    });
    share.unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEAKS: MachineLimits = MachineLimits { bandwidth: 1e9, integer: 4e12, bf16: 2e12, f32: 1e12 };

    fn opened(name: &str) -> OpenedModel {
        OpenedModel::open(&kvasir_testkit::paths::model(name)).unwrap()
    }

    #[test]
    fn predictions_follow_size_and_memory() {
        let opened = opened("qwen3");
        let config = EngineConfig { memory_utilization: Some(0.5), ..EngineConfig::default() };
        let at = |free| Forecast::of(&opened, KvType::Bf16, free, &config, Some(&PEAKS));
        let slots = |free| at(free).division.map(|division| division.slots);
        let stored = at(None).stored;
        assert_eq!(
            (at(None).fits(), at(Some(stored - 1)).fits(), at(Some(stored)).fits()),
            (None, Some(false), Some(true))
        );
        let slot = KvType::Bf16.slot_bytes(&opened.model.target.layers) as u64;
        assert_eq!(slots(Some(stored + 40 * slot)), Some(20));
        assert_eq!(slots(Some(stored + 20 * slot)), None, "less than a block");
        assert!(at(Some(stored - 1)).to_string().contains("do not fit"));
        let (prompt, seconds) = at(None).first_token.unwrap();
        assert_eq!(prompt, PROMPT.min(opened.model.target.max_positions));
        // Two operations per matrix element and token, and attention.
        assert!(seconds > 0.0 && seconds < 1.0, "{seconds}");
        assert_eq!(Forecast::of(&opened, KvType::Bf16, None, &config, None).first_token, None);
    }

    #[test]
    fn a_draft_model_counts_in_memory_and_time() {
        let models = [("qwen3", "draft", "qwen3"), ("eagle3_qwen3", "eagle3", "eagle3_qwen3/draft")];
        for (name, method, draft) in models {
            let spec = format!("{method}:{}", kvasir_testkit::paths::model(draft).display());
            let with = opened(name).speculate(&spec.parse().unwrap()).unwrap();
            let config = EngineConfig { memory_utilization: Some(1.0), ..EngineConfig::default() };
            let forecast =
                |opened: &OpenedModel, free| Forecast::of(opened, KvType::Bf16, free, &config, Some(&PEAKS));
            let (alone, both) = (forecast(&opened(name), None), forecast(&with, None));
            let (program, checkpoint) = with.draft().unwrap();
            let own: u64 = checkpoint.tensors().map(|tensor| tensor.bytes.len() as u64).sum();
            // The target borrows the projection of an EAGLE-3 head, which counts once.
            assert_eq!(both.stored, alone.stored + own, "{method}");
            let slot =
                KvType::Bf16.slot_bytes(&with.model.target.layers) + KvType::Bf16.slot_bytes(&program.layers);
            let free = both.stored + 20 * slot as u64;
            let division = forecast(&with, Some(free)).division;
            assert_eq!(division.map(|division| division.slots), Some(20), "{method}");
            assert!(both.first_token.unwrap().1 > alone.first_token.unwrap().1, "{method}");
            assert_eq!(forecast(&with, Some(both.stored - 1)).fits(), Some(false), "{method}");
        }
    }

    #[test]
    fn attention_grows_with_the_square_up_to_the_window() {
        let target = opened("qwen3").model.target;
        let ratio = attention_operations(&target, 200.0) / attention_operations(&target, 100.0);
        assert!((ratio - 4.0).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn ranges_have_one_digit_where_it_matters() {
        let text = |low: f64| Range(low, low * 2.0).to_string();
        assert_eq!([text(0.01), text(1.26), text(30.0)], ["less than 0.1 s", "1.3 to 2.5 s", "30 to 60 s"]);
    }
}
