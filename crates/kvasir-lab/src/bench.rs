//! Speed of the CPU backend, always beside its distance from what the machine can do.

use crate::shapes::{SHAPES, shape};
use crate::stolen::Watch;
use kvasir_cpu::{
    CpuExecutor, CpuModel, Form, KvType, Limits, PeakMeter, Peaks, Precision, RandomWeights, Team,
    WeightSource,
};
use kvasir_exec::{Batch, BatchRow, Executor, IN_FLIGHT, Phase, PoolRow, SequenceSpec, Step};
use kvasir_formats::{Checkpoint, DType};
use kvasir_kv::{Cache, ClaimRow, Contiguous, Radix, SeqId, Span, StepId, Token, blocks::BlockConfig};
use kvasir_program::{Model, Source};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Whose weights run.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A checkpoint.
    Checkpoint(&'a Path),
    /// A known shape with random weights of one type.
    Shape(&'a str, &'a str),
}

/// Loads what is to be measured.
pub fn load(
    subject: Subject<'_>,
    precision: Precision,
    threads: Option<usize>,
) -> Result<Arc<CpuModel>, String> {
    let team = Arc::new(threads.map_or_else(Team::of_machine, Team::new));
    let (source, weights): (Source, Arc<dyn WeightSource + Send + Sync>) = match subject {
        Subject::Checkpoint(path) => {
            let checkpoint = Checkpoint::open(path).map_err(|e| e.to_string())?;
            (checkpoint.source(), Arc::new(checkpoint))
        }
        Subject::Shape(name, dtype) => {
            let config =
                shape(name).ok_or_else(|| format!("--shape: {name} is none of {}", SHAPES.join(", ")))?;
            let dtype = DType::from_name(dtype).ok_or_else(|| format!("--dtype: no type {dtype}"))?;
            (Source::of_config(config), Arc::new(RandomWeights::new(dtype)))
        }
    };
    let model = Model::build(&source).map_err(|e| e.to_string())?;
    let model = CpuModel::load(&model.target, weights, precision, team).map_err(|e| e.to_string())?;
    // What is measured is how fast it gets, not how it starts.
    model.pack().map_err(|e| e.to_string())?;
    Ok(Arc::new(model))
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reading a prompt of this many tokens.
    Prompt {
        /// Its length.
        tokens: u32,
    },
    /// Writing this many tokens behind a context.
    Generation {
        /// Tokens that are written.
        tokens: u32,
        /// Length of the context.
        depth: u32,
    },
    /// Writing with several sequences at once; only that is timed. Branches of a trunk are timed from the trunk's end on, so that
    /// reading what is each one's own counts.
    Streams {
        /// Sequences.
        streams: u32,
        /// Tokens that all begin with: a trunk that they are forked off.
        shared: u32,
        /// Prompt of each, behind what is shared.
        prompt: u32,
        /// Tokens that each writes.
        tokens: u32,
    },
}

impl Work {
    /// Refuses sequences that a model cannot take.
    fn check(self, longest: usize) -> Result<(), String> {
        let (prompt, tokens) = match self {
            Self::Prompt { tokens } => (tokens, 0),
            Self::Generation { tokens, depth } => (depth.max(1), tokens),
            Self::Streams { shared, prompt, tokens, .. } => (shared + prompt, tokens),
        };
        if prompt as usize > longest {
            return Err(format!("the prompt has {prompt} tokens, the model takes {longest}"));
        }
        if (prompt + tokens) as usize > longest {
            return Err(format!(
                "the prompt has {prompt} tokens and {tokens} follow, the model takes {longest}"
            ));
        }
        Ok(())
    }
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Tokens per second of each repetition.
    pub samples: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// Of each repetition, the share of the processors' time that went to other guests of the same hardware; none where the system does not say.
    pub stolen: Vec<Option<f64>>,
    /// Tokens per second if the machine's limits were reached, which are measured before and after each repetition: the median.
    pub limit: f64,
    /// The median of what each repetition reached of its own limit.
    pub share: f64,
    /// Which limit binds: `arithmetic` or `bandwidth`.
    pub bound: &'static str,
    /// Measured read bandwidth in bytes per second.
    pub bandwidth: f64,
    /// Measured peaks in operations per second.
    pub peaks: Arithmetic,
    /// Instructions used.
    pub level: String,
    /// Threads.
    pub threads: usize,
}

impl Measured {
    /// The share of the processors' time that others took in the worst of the repetitions, where the system says so.
    pub fn most_stolen(&self) -> Option<f64> {
        self.stolen.iter().copied().flatten().max_by(f64::total_cmp)
    }
}

/// Measured peaks in operations per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Arithmetic {
    /// 8-bit integers.
    pub int8: f64,
    /// bf16.
    pub bf16: f64,
    /// f32.
    pub f32: f64,
}

/// Tokens of one step at most.
const STEP: u32 = 2048;
/// Slots of a block where several sequences run: what the server has unless told otherwise.
const BLOCK: u32 = 16;

/// Measures `reps` repetitions after one that is not counted.
pub fn bench(model: &Arc<CpuModel>, kv: KvType, work: Work, reps: usize) -> Result<Measured, String> {
    work.check(model.program().max_positions)?;
    let meter = PeakMeter::new(model.team()).map_err(|e| e.to_string())?;
    let mut bench = Bench::new(model, kv, work)?;
    bench.once(work)?;
    let (mut samples, mut stolen) = (Vec::with_capacity(reps), Vec::with_capacity(reps));
    // Machines that are shared are not the same from one second to the next.
    let mut peaks = vec![meter.measure()];
    for _ in 0..reps {
        let watch = Watch::start();
        let seconds = bench.once(work)?;
        stolen.push(watch.share());
        samples.push(f64::from(counted(work)) / seconds);
        peaks.push(meter.measure());
    }
    let ideal = Ideal::of(model, work, bench.token_bytes);
    let limit = |peaks: &Peaks| {
        f64::from(counted(work))
            / ideal.arithmetic(peaks, model.precision()).max(ideal.bytes / peaks.bandwidth)
    };
    let limits: Vec<f64> = peaks.windows(2).map(|around| mean(around.iter().map(limit))).collect();
    let usual = |of: fn(&Peaks) -> f64| median(peaks.iter().map(of));
    let usual = Peaks {
        bandwidth: usual(|p| p.bandwidth),
        int8: usual(|p| p.int8),
        bf16: usual(|p| p.bf16),
        f32: usual(|p| p.f32),
    };
    let arithmetic = ideal.arithmetic(&usual, model.precision());
    Ok(Measured {
        median: median(samples.iter().copied()),
        stolen,
        limit: median(limits.iter().copied()),
        share: median(samples.iter().zip(&limits).map(|(sample, limit)| sample / limit)),
        samples,
        bound: if arithmetic > ideal.bytes / usual.bandwidth { "arithmetic" } else { "bandwidth" },
        bandwidth: usual.bandwidth,
        peaks: Arithmetic { int8: usual.int8, bf16: usual.bf16, f32: usual.f32 },
        level: model.level().to_string(),
        threads: model.team().len(),
    })
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len() as f64;
    values.sum::<f64>() / n
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = |at: usize| sorted.get(at).copied().unwrap_or_default();
    (middle(sorted.len() / 2) + middle((sorted.len().max(1) - 1) / 2)) / 2.0
}

fn counted(work: Work) -> u32 {
    match work {
        Work::Prompt { tokens } | Work::Generation { tokens, .. } => tokens,
        Work::Streams { streams, tokens, .. } => streams * tokens,
    }
}

/// Operations and bytes that the work takes at least.
#[derive(Default)]
struct Ideal {
    quantised: f64,
    bf16: f64,
    f32: f64,
    attention: f64,
    bytes: f64,
}

impl Ideal {
    fn of(model: &CpuModel, work: Work, token_bytes: usize) -> Self {
        let mut ideal = Self::default();
        let all = f64::from(counted(work));
        // Of a prompt only the last token's logits are wanted.
        let heads = if matches!(work, Work::Prompt { .. }) { 1.0 } else { all };
        let (inner, whole) = (model.multiply_adds(false), model.multiply_adds(true));
        for (form, count) in &whole {
            let inner = inner.get(form).copied().unwrap_or_default();
            let operations = 2.0 * (inner as f64 * all + (count - inner) as f64 * heads);
            match form {
                Form::Quantised => ideal.quantised += operations,
                Form::Bf16 => ideal.bf16 += operations,
                Form::F32 => ideal.f32 += operations,
            }
        }
        let (streams, steps, first) = match work {
            Work::Prompt { tokens } => (1, tokens.div_ceil(STEP), 0),
            Work::Generation { tokens, depth } => (1, tokens, depth),
            Work::Streams { streams, shared, prompt, tokens } => (streams, tokens, shared + prompt),
        };
        let at_once = counted(work) / steps.max(1);
        let each = counted(work) / streams;
        let seen = |window: Option<u32>| -> f64 {
            (first..first + each).map(|p| f64::from(window.map_or(p + 1, |w| w.min(p + 1)))).sum::<f64>()
                * f64::from(streams)
        };
        for op in &model.program().ops {
            if let kvasir_program::Op::UpdateAndAttend { q, layer, .. } = op
                && let Some(facts) = model.program().layers.get(layer.0 as usize)
            {
                let heads = model.program().value(*q).width() / facts.key_dim.max(1);
                ideal.attention +=
                    2.0 * (heads * (facts.key_dim + facts.value_dim)) as f64 * seen(facts.window);
            }
        }
        // A chunk of a prompt reads each row once for all its tokens.
        // And what sequences share is read once for all of them.
        let rows = match work {
            Work::Prompt { .. } => f64::from(each),
            Work::Generation { .. } => seen(None),
            Work::Streams { streams, shared, tokens, .. } => {
                seen(None) - f64::from(streams - 1) * f64::from(shared) * f64::from(tokens)
            }
        };
        ideal.bytes = model.bytes_read(at_once) * f64::from(steps) + rows * token_bytes as f64;
        ideal
    }

    fn arithmetic(&self, peaks: &Peaks, precision: Precision) -> f64 {
        let attention = if precision == Precision::Auto { peaks.bf16 } else { peaks.f32 };
        let times = if precision == Precision::Close { 2.0 } else { 1.0 };
        self.quantised / peaks.int8
            + self.bf16 * times / peaks.bf16
            + self.f32 / peaks.f32
            + self.attention / attention
    }
}

struct Bench {
    executor: CpuExecutor,
    cache: Box<dyn Cache>,
    step: Option<Box<Step>>,
    next: u64,
    vocab: u32,
    /// Tokens of one step at most.
    longest: u32,
    token_bytes: usize,
}

impl Bench {
    fn new(model: &Arc<CpuModel>, kv: KvType, work: Work) -> Result<Self, String> {
        let (slots, streams) = match work {
            Work::Prompt { tokens } => (tokens, 1),
            Work::Generation { tokens, depth } => (tokens + depth.max(1), 1),
            Work::Streams { streams, shared, prompt, tokens } => {
                // Each stream's last block may be less than full, and so may the copy of the trunk's last.
                let each = (prompt + tokens).next_multiple_of(BLOCK) + BLOCK;
                (shared.next_multiple_of(BLOCK) + streams * each, streams)
            }
        };
        let longest = match work {
            Work::Prompt { tokens } => tokens,
            Work::Generation { depth, .. } => depth.max(1),
            Work::Streams { streams, shared, prompt, .. } => shared.max(prompt * streams),
        };
        let longest = longest.clamp(streams, STEP);
        let limits = Limits { slots, tokens: longest, rows: streams, kv, ring: None };
        let executor = CpuExecutor::new(Arc::clone(model), limits).map_err(|e| e.to_string())?;
        let cache: Box<dyn Cache> = match streams {
            1 => Box::new(Contiguous::new(slots)),
            _ => {
                let blocks = slots / BLOCK;
                let config = BlockConfig {
                    blocks,
                    block_size: BLOCK,
                    max_sequences: streams,
                    ..BlockConfig::default()
                };
                Box::new(Radix::new(config).map_err(|e| e.to_string())?)
            }
        };
        let token_bytes = executor.pool().token_bytes();
        Ok(Self {
            executor,
            cache,
            step: Some(Box::default()),
            next: 1,
            vocab: model.program().vocab as u32,
            longest,
            token_bytes,
        })
    }

    /// Runs the work once; gives the seconds that count.
    fn once(&mut self, work: Work) -> Result<f64, String> {
        self.cache.clear().map_err(|e| e.to_string())?;
        let (streams, shared, prompt) = match work {
            Work::Prompt { tokens } => (1, 0, tokens),
            Work::Generation { depth, .. } => (1, 0, depth.max(1)),
            Work::Streams { streams, shared, prompt, .. } => (streams, shared, prompt),
        };
        for row in 0..streams {
            self.executor.bind(PoolRow(row), SequenceSpec::default());
        }
        let mut open = vec![self.cache.open().map_err(|e| e.to_string())?];
        if shared > 0 {
            self.read(&open, 0, shared)?;
        }
        let mut started = Instant::now();
        for _ in 1..streams {
            let seq = self.cache.open().map_err(|e| e.to_string())?;
            if shared > 0 {
                let sequences = self.cache.sequences().map_err(|e| e.to_string())?;
                sequences.copy(open[0], seq, 0..shared).map_err(|e| e.to_string())?;
            }
            open.push(seq);
        }
        self.read(&open, shared, prompt)?;
        let (Work::Generation { tokens, .. } | Work::Streams { tokens, .. }) = work else {
            return Ok(started.elapsed().as_secs_f64());
        };
        let rows: Vec<_> =
            (0..).zip(&open).map(|(row, seq)| (*seq, PoolRow(row), &[IN_FLIGHT][..], 0)).collect();
        if shared == 0 {
            started = Instant::now();
        }
        for _ in 0..tokens {
            self.run(&rows)?;
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// Reads `count` tokens of each sequence from position `first` on, as many of all of them in one step as it takes.
    fn read(&mut self, open: &[SeqId], first: u32, count: u32) -> Result<(), String> {
        let vocab = self.vocab;
        let of = |row: usize, from: u32, to: u32| -> Vec<Token> {
            (from..to).map(|i| (i * 7919 + row as u32 * 31 + 11) % vocab).collect()
        };
        let together = (self.longest / count.max(1)).max(1) as usize;
        for (n, group) in open.chunks(together).enumerate() {
            let mut at = 0;
            while at < count {
                let n_tokens = self.longest.min(count - at);
                let from = if at + n_tokens == count { n_tokens - 1 } else { n_tokens };
                let rows = (n * together..).zip(group);
                let tokens: Vec<(SeqId, PoolRow, Vec<Token>)> = rows
                    .map(|(row, seq)| (*seq, PoolRow(row as u32), of(row, first + at, first + at + n_tokens)))
                    .collect();
                let rows: Vec<_> = tokens.iter().map(|(seq, row, t)| (*seq, *row, &t[..], from)).collect();
                self.run(&rows)?;
                at += n_tokens;
            }
        }
        Ok(())
    }

    fn run(&mut self, rows: &[(SeqId, PoolRow, &[Token], u32)]) -> Result<(), String> {
        let id = StepId(self.next);
        self.next += 1;
        let claim = |r: &(SeqId, PoolRow, &[Token], u32)| ClaimRow {
            seq: r.0,
            redirected: 0,
            tokens: r.2.len() as u32,
        };
        self.cache.claim(id, &rows.iter().map(claim).collect::<Vec<_>>()).map_err(|e| e.to_string())?;
        let mut step = self.step.take().unwrap_or_default();
        step.batch.reset(id);
        self.cache.plan(id, &mut step.plan).map_err(|e| e.to_string())?;
        let Batch { tokens: all, rows: into, .. } = &mut step.batch;
        for (seq, pool_row, tokens, from) in rows {
            let phase = if tokens.len() == 1 { Phase::Decode } else { Phase::Prefill };
            let tokens_at = Span::new(all.len(), tokens.len());
            into.push(BatchRow {
                seq: *seq,
                phase,
                tokens: tokens_at,
                sample_from: *from,
                pool_row: *pool_row,
                ..BatchRow::default()
            });
            all.extend_from_slice(tokens);
        }
        let pending = self.executor.submit(step).map_err(|refused| refused.error.to_string())?;
        let (step, result) = self.executor.wait(pending);
        self.step = Some(step);
        result.map_err(|e| e.to_string())?;
        self.cache.retire(id).map_err(|e| e.to_string())
    }
}
