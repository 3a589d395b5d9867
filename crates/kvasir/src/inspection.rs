//! Data of `kvasir inspect`: architecture, programs, K/V facts per layer, and memory plan.

use crate::engine::DEFAULT_SLOTS;
use crate::memory::available_memory;
use crate::model_card::ModelCard;
use crate::opened::OpenedModel;
use kvasir_cpu::KvType;
use kvasir_engine::{EngineConfig, MemoryDivision};
use kvasir_program::{Architecture, Buffers, LayerFacts, Model, StateFacts};
use serde::Serialize;
use std::fmt;

/// All that is known of a model before it runs.
#[derive(Debug, Serialize)]
pub struct Inspection {
    /// Name of the architecture.
    pub architecture: String,
    /// Published models of the architecture.
    pub models: &'static str,
    /// `general.architecture` of the GGUF files that are read as this architecture.
    pub gguf: &'static [&'static str],
    /// Size, type and context.
    pub card: ModelCard,
    /// Whether there is a tokenizer, and a chat template.
    pub text: TextSupport,
    /// Weight schema and programs of target and prediction layers.
    pub programs: Model,
    /// K/V per token.
    pub kv: KvFacts,
    /// Memory plan.
    pub memory: MemoryPlan,
}

/// What a model brings to read and write text.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct TextSupport {
    /// It has a tokenizer.
    pub tokenizer: bool,
    /// It has a chat template.
    pub chat_template: bool,
    /// The chat template renders tools.
    pub tools: bool,
}

impl TextSupport {
    fn of(opened: &OpenedModel) -> Self {
        let source = opened.text_files().ok().and_then(|files| files.template_source(None).ok().flatten());
        Self {
            tokenizer: opened.tokenizer().is_ok_and(|tokenizer| tokenizer.is_some()),
            chat_template: source.is_some(),
            tools: source.is_some_and(|source| source.contains("tools")),
        }
    }
}

/// K/V facts of the model, independent of a session.
#[derive(Debug, Serialize)]
pub struct KvFacts {
    /// Number of the target's layers with K/V.
    pub n_layers: usize,
    /// K/V layout of each of them.
    pub layers: Vec<LayerFacts>,
    /// K/V layouts of each prediction layer (MTP).
    pub predictions: Vec<Vec<LayerFacts>>,
    /// Sizes of the target's recurrent states, in f32 elements per sequence and per draft token.
    pub states: Vec<StateFacts>,
}

/// Memory of weights, K/V and activations.
#[derive(Debug, Serialize)]
pub struct MemoryPlan {
    /// Number of tensors in the checkpoint.
    pub tensors: usize,
    /// Number of tensors outside the text model, which are not read.
    pub left_out: usize,
    /// Size of all tensors as stored, in bytes.
    pub stored: u64,
    /// K/V elements per token over all layers of the target.
    pub kv_numbers_per_token: usize,
    /// K/V bytes per token with a 16-bit type.
    pub kv_bytes_per_token_16_bit: usize,
    /// K/V bytes per token with a 32-bit type.
    pub kv_bytes_per_token_32_bit: usize,
    /// Number of activation buffers, shared among values.
    pub buffers: usize,
    /// Number of values that take turns in them.
    pub values: usize,
    /// Activation elements per token of a step.
    pub step_numbers_per_token: usize,
    /// Additional activation elements per sampled token.
    pub step_numbers_per_sample: usize,
    /// How a server with default options divides the free memory of this machine, with 16-bit K
    /// and V. `None` if it holds less than one sequence.
    pub division: Option<MemoryDivision>,
}

impl Inspection {
    /// Inspects an opened model.
    pub fn of(opened: &OpenedModel) -> Self {
        let target = &opened.model.target;
        let buffers = Buffers::plan(target, &[]);
        let kv = target.kv_width();
        let architecture = Architecture::named(&target.architecture);
        Self {
            architecture: target.architecture.clone(),
            models: architecture.map_or("", |known| known.models),
            gguf: architecture.map_or(&[], |known| known.gguf.names),
            card: ModelCard::of(opened),
            text: TextSupport::of(opened),
            programs: opened.model.clone(),
            kv: KvFacts {
                n_layers: target.layers.len(),
                layers: target.layers.clone(),
                predictions: opened.model.predictions.iter().map(|p| p.layers.clone()).collect(),
                states: target.states.clone(),
            },
            memory: MemoryPlan {
                tensors: opened.checkpoint.tensors().count(),
                left_out: opened.checkpoint.left_out(),
                stored: opened.stored_bytes(),
                kv_numbers_per_token: kv,
                kv_bytes_per_token_16_bit: kv * 2,
                kv_bytes_per_token_32_bit: kv * 4,
                buffers: buffers.buffers.len(),
                values: target.values.len(),
                step_numbers_per_token: buffers.numbers(1, 0),
                step_numbers_per_sample: buffers.numbers(0, 1),
                division: default_division(opened),
            },
        }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = &self.programs.target;
        let Self { card, text, .. } = self;
        let yes = |is: bool, what: &'static str| if is { what } else { "no" };
        writeln!(f, "architecture      {} ({})", self.architecture, self.models)?;
        writeln!(f, "GGUF name         {}", self.gguf.join(", "))?;
        writeln!(f, "parameters        {:.1} M, mostly {}", card.parameters as f64 / 1e6, card.quantization)?;
        writeln!(f, "context           {} tokens", target.max_positions)?;
        writeln!(f, "hidden size       {}", target.hidden)?;
        writeln!(f, "vocabulary        {}", target.vocab)?;
        if target.is_encoder() {
            let task = match target.labels() {
                0 => "embeds texts".to_owned(),
                1 => "scores pairs of texts".to_owned(),
                labels => format!("classifies texts into {labels} labels"),
            };
            writeln!(f, "encoder           {task}; does not generate")?;
        }
        writeln!(f, "prediction layers {}", self.programs.predictions.len())?;
        writeln!(f, "tokenizer         {}", yes(text.tokenizer, "yes"))?;
        let template = if text.tools { "yes, with tools" } else { "yes, without tools" };
        writeln!(f, "chat template     {}", yes(text.chat_template, template))?;
        writeln!(f, "\nK/V per token and layer")?;
        for (layers, facts) in groups(&self.kv.layers) {
            let LayerFacts { kv_heads, key_dim, value_dim, index_dim, .. } = facts;
            write!(f, "  {layers}: {kv_heads} heads, key {key_dim}, value {value_dim}")?;
            write!(f, "{}", if facts.value_in_key { " (part of the key)" } else { "" })?;
            facts.window.iter().try_for_each(|window| write!(f, ", window {window}"))?;
            match facts.lookahead {
                0 => {}
                u32::MAX => write!(f, ", both directions")?,
                ahead => write!(f, ", {ahead} ahead")?,
            }
            writeln!(f, "{}", if *index_dim > 0 { format!(", indexer {index_dim}") } else { String::new() })?;
        }
        if target.is_recurrent() {
            let draft_elements = target.state_layout().tail_elements;
            writeln!(f, "\nrecurrent states, of fixed size per sequence")?;
            write!(f, "  {} states, {} bytes in all", target.states.len(), target.state_elements() * 4)?;
            writeln!(f, ", {} bytes per draft token", draft_elements * 4)?;
        }
        let memory = &self.memory;
        writeln!(f, "\nmemory")?;
        writeln!(f, "  {} tensors, {} bytes as stored", memory.tensors, memory.stored)?;
        if memory.left_out > 0 {
            writeln!(f, "  {} tensors are not of the text model and are not read", memory.left_out)?;
        }
        let (half, full) = (memory.kv_bytes_per_token_16_bit, memory.kv_bytes_per_token_32_bit);
        writeln!(f, "  {half} bytes of K/V per token in a 16-bit pool, {full} in a 32-bit one")?;
        match &memory.division {
            Some(division) => writeln!(f, "  by default on this machine: {division}")?,
            None => writeln!(f, "  the memory that the weights leave holds less than one sequence")?,
        }
        if !target.windows().is_empty() {
            writeln!(f, "  single-sequence caches store K/V of all tokens in sliding-window layers")?;
        }
        writeln!(f, "  {} values in {} buffers", memory.values, memory.buffers)?;
        let (token, sample) = (memory.step_numbers_per_token, memory.step_numbers_per_sample);
        writeln!(f, "  {token} numbers per token of a step, {sample} per sampled token")?;
        self.programs.programs().try_for_each(|program| write!(f, "\n{program}"))
    }
}

/// How an engine with default options divides the free memory of this machine.
fn default_division(opened: &OpenedModel) -> Option<MemoryDivision> {
    let config = EngineConfig::default();
    opened.memory_division(&config, KvType::Bf16, available_memory(), Some(DEFAULT_SLOTS)).ok()
}

/// Equal layers under one name: `layers 0, 2, 4-7`.
fn groups(layers: &[LayerFacts]) -> Vec<(String, &LayerFacts)> {
    let mut groups: Vec<(Vec<usize>, &LayerFacts)> = Vec::new();
    for (layer, facts) in layers.iter().enumerate() {
        match groups.iter_mut().find(|(_, other)| *other == facts) {
            Some((of, _)) => of.push(layer),
            None => groups.push((vec![layer], facts)),
        }
    }
    let name = |layers: &[usize]| {
        let runs = layers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            one => one.first().map_or_else(String::new, usize::to_string),
        });
        let word = if layers.len() == 1 { "layer" } else { "layers" };
        format!("{word} {}", runs.collect::<Vec<_>>().join(", "))
    };
    groups.iter().map(|(layers, facts)| (name(layers), *facts)).collect()
}
