//! Golden tests over every recorded checkpoint: logits, greedy decoding, MTP drafts, batch
//! invariance, and weight loading.
//!
//! Exact arithmetic must reproduce the recorded logits and tokens. The quantized arithmetic must
//! stay near them and must not depend on batch composition, chunked prefill or the number of
//! threads.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_cpu::{
    CpuExecutor, CpuModel, KvType, Limits, Nibbles, Precision, Scaled, Stored, ThreadPool, WeightSource,
};
use kvasir_exec::{Batch, BatchRow, Executor, PoolRow, SequenceSpec, Step};
use kvasir_formats::{Checkpoint, DType, Error, Rules, convert};
use kvasir_kv::{Cache, CacheConfig, CacheKind, ClaimRow, SeqId, Span, StateConfig, StepId, Token, build};
use kvasir_program::{Model, Op, Program, Tap};
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

fn cases() -> Vec<PathBuf> {
    let mut cases = kvasir_testkit::paths::models();
    cases.retain(|case| case.join("expected.json").exists());
    assert!(cases.len() >= 24, "only {} checkpoints", cases.len());
    cases
}

fn load(case: &Path, precision: Precision, threads: usize) -> Arc<CpuModel> {
    Arc::new(load_as(case, precision, threads, |model| &model.target))
}

fn load_as(
    case: &Path,
    precision: Precision,
    threads: usize,
    program: impl Fn(&Model) -> &Program,
) -> CpuModel {
    let checkpoint = Checkpoint::open(case).unwrap();
    let model = Model::build(&checkpoint.source()).unwrap();
    let thread_pool = Arc::new(ThreadPool::new(threads));
    CpuModel::load(program(&model), Arc::new(checkpoint), precision, thread_pool).unwrap()
}

struct Session {
    executor: CpuExecutor,
    cache: Box<dyn Cache>,
    step: u64,
}

/// A sequence, its next tokens, and the index from which they are sampled.
type Row<'a> = (SeqId, &'a [Token], usize);

/// States of sequences for models with recurrent layers.
const STATES: StateConfig = StateConfig { live: 8, checkpoints: 4, tail_rows: 4, interval: 16 };

impl Session {
    fn new(model: &Arc<CpuModel>, kv: KvType, cache: CacheKind) -> Self {
        let states = model.program().is_recurrent().then_some(STATES);
        let config = CacheConfig { states, ..CacheConfig::new(1024) };
        let limits = Limits { slots: config.capacity + 64, tokens: 512, rows: 8, kv, ring: None };
        let executor = CpuExecutor::new(Arc::clone(model), limits).unwrap().with_states(states).unwrap();
        Self { executor, cache: build(cache, &config).unwrap(), step: 1 }
    }

    fn open(&mut self, prompt: &[Token], final_len: usize) -> SeqId {
        let seq = self.cache.open().unwrap();
        let spec =
            SequenceSpec { prompt: prompt.to_vec(), final_len: final_len as u32, ..SequenceSpec::default() };
        self.executor.bind(PoolRow(seq.index() as u32), spec);
        seq
    }

    /// Runs one sequence's tokens with optional hidden states, and returns the logits from `from`
    /// on.
    fn pass(&mut self, seq: SeqId, tokens: &[Token], from: usize, hidden: &[f32]) -> Vec<f32> {
        let mut step = self.step(&[(seq, tokens, from)]);
        self.executor.execute(&mut step, hidden).unwrap();
        self.cache.retire(step.plan.step).unwrap();
        step.output.logits
    }

    fn run(&mut self, rows: &[Row<'_>]) -> (Vec<Token>, Vec<f32>) {
        let step = self.step(rows);
        let id = step.plan.step;
        let pending = self.executor.submit(Box::new(step)).unwrap();
        let (step, result) = self.executor.wait(pending);
        result.unwrap();
        self.cache.retire(id).unwrap();
        (step.output.tokens, step.output.logits)
    }

    fn step(&mut self, rows: &[Row<'_>]) -> Step {
        let id = StepId(self.step);
        self.step += 1;
        let claim = |(seq, tokens, _): &Row<'_>| ClaimRow::new(*seq, tokens.len() as u32);
        self.cache.claim(id, &rows.iter().map(claim).collect::<Vec<_>>()).unwrap();
        let mut step =
            Step { batch: Batch { step: id, logits: true, ..Batch::default() }, ..Step::default() };
        self.cache.plan(id, &mut step.plan).unwrap();
        for (seq, tokens, from) in rows {
            step.batch.rows.push(BatchRow {
                seq: *seq,
                tokens: Span::new(step.batch.tokens.len(), tokens.len()),
                sample_from: *from as u32,
                pool_row: PoolRow(seq.index() as u32),
                ..BatchRow::default()
            });
            step.batch.tokens.extend_from_slice(tokens);
        }
        step
    }
}

fn tokens(json: &Json) -> Vec<Token> {
    json.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as Token).collect()
}

fn floats(json: &Json) -> Vec<f32> {
    json.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn deviation(x: &[f32]) -> f32 {
    let mean = x.iter().sum::<f32>() / x.len() as f32;
    (x.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / x.len() as f32).sqrt()
}

/// Margin between the largest and the second largest logit.
fn margin(logits: &[f32]) -> f32 {
    let mut sorted = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted[0] - sorted[1]
}

#[test]
fn logits_and_greedy_continuations_are_as_recorded() {
    let mut lost = Vec::new();
    for case in cases() {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let expected: Json =
            serde_json::from_str(&std::fs::read_to_string(case.join("expected.json")).unwrap()).unwrap();
        let (exact, auto) = (load(&case, Precision::F32, 2), load(&case, Precision::Auto, 2));
        let bf16 = expected["transformers_in_bf16_throughout"]["final_logits_max_abs_diff"].as_f64();
        let (mut error, mut fast) = (0f32, 0f32);
        for (prompt, ids) in expected["prompts"].as_object().unwrap() {
            let ids = tokens(ids);
            let want = floats(&expected["final_logits"][prompt]);
            let greedy = tokens(&expected["greedy"][prompt]["tokens"]);
            let all = [&ids[..], &greedy].concat();
            let mut session = Session::new(&exact, KvType::F32, CacheKind::Contiguous);
            let seq = session.open(&ids, all.len());
            let (drawn, logits) = session.run(&[(seq, &all[..all.len() - 1], ids.len() - 1)]);
            let vocab = want.len();
            error = error.max(worst(&logits[..vocab], &want));
            assert_eq!(drawn, greedy, "{name} {prompt}");
            let mut session = Session::new(&auto, auto.natural_kv(), CacheKind::Contiguous);
            let seq = session.open(&ids, all.len());
            let (near_drawn, near) = session.run(&[(seq, &all[..all.len() - 1], ids.len() - 1)]);
            let size = deviation(&want);
            fast = fast.max(worst(&near[..vocab], &want) / size);
            let allowed = bf16.map_or(0.03 * size, |cost| (cost as f32).max(0.03 * size));
            for (at, (a, b)) in near_drawn.iter().zip(&greedy).enumerate() {
                let lead = margin(&logits[at * vocab..(at + 1) * vocab]);
                if a != b && lead > allowed {
                    lost.push(format!("{name} {prompt} step {at}: lead {lead}, allowed {allowed}"));
                }
            }
            let off = worst(&near[..vocab], &want);
            if off > allowed {
                lost.push(format!("{name} {prompt}: logits off by {off}, allowed {allowed}"));
            }
        }
        assert!(error < 1e-3, "{name}: exact logits differ by {error}");
        println!("{name}: exact {error:.1e}, fast {:.2} % of the deviation", fast * 100.0);
    }
    assert!(lost.is_empty(), "the fast arithmetic goes astray:\n{}", lost.join("\n"));
}

#[test]
fn mxfp4_in_gguf_loses_nothing_in_a_small_model() {
    let case = cases().into_iter().find(|case| case.ends_with("gpt_oss_mxfp4")).unwrap();
    let expected: Json =
        serde_json::from_str(&std::fs::read_to_string(case.join("expected.json")).unwrap()).unwrap();
    let file = std::env::temp_dir().join(format!("kvasir-small-floats-{}.gguf", std::process::id()));
    let rules = Rules::parse("bf16", &["*_exps.*=mxfp4".into()]).unwrap();
    convert(&case, &file, &rules).unwrap();
    let gguf = load(&file, Precision::Auto, 2);
    std::fs::remove_file(&file).unwrap();
    for (prompt, ids) in expected["prompts"].as_object().unwrap() {
        let (ids, greedy) = (tokens(ids), tokens(&expected["greedy"][prompt]["tokens"]));
        let all = [&ids[..], &greedy].concat();
        let mut session = Session::new(&gguf, gguf.natural_kv(), CacheKind::Contiguous);
        let seq = session.open(&ids, all.len());
        let (drawn, _) = session.run(&[(seq, &all[..all.len() - 1], ids.len() - 1)]);
        assert_eq!(drawn, greedy, "{prompt}");
    }
}

#[test]
fn rows_are_invariant_to_batch_chunking_and_threads() {
    for case in cases() {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let expected: Json =
            serde_json::from_str(&std::fs::read_to_string(case.join("expected.json")).unwrap()).unwrap();
        let prompts: Vec<Vec<Token>> =
            expected["prompts"].as_object().unwrap().values().map(tokens).collect();
        let longest = prompts.iter().max_by_key(|p| p.len()).unwrap();
        let alone = |threads, kv| {
            let model = load(&case, Precision::Auto, threads);
            let mut session = Session::new(&model, kv, CacheKind::Contiguous);
            let seq = session.open(longest, 400);
            session.run(&[(seq, longest, longest.len() - 1)]).1
        };
        let model = load(&case, Precision::Auto, 2);
        for kv in [model.natural_kv(), KvType::F16, KvType::Q8_0] {
            if kv == KvType::Q8_0 && model.program().layers.iter().any(|l| l.key_width() % 32 != 0) {
                continue;
            }
            let want = alone(1, kv);
            assert_eq!(alone(2, kv), want, "{name}: threads");
            let mut session = Session::new(&model, kv, CacheKind::Paged);
            let seq = session.open(longest, 400);
            let others: Vec<SeqId> = prompts.iter().take(2).map(|p| session.open(p, 400)).collect();
            let mut at = 0;
            let sizes = [1, 5, 17, 1, 40];
            let mut last = Vec::new();
            for size in sizes.iter().cycle() {
                let end = longest.len().min(at + size);
                let mut rows: Vec<Row<'_>> = vec![(seq, &longest[at..end], end - at - 1)];
                let other = &prompts[at % others.len()][..1];
                rows.push((others[at % others.len()], other, 0));
                let logits = session.run(&rows).1;
                last = logits[..logits.len() / 2].to_vec();
                at = end;
                if at == longest.len() {
                    break;
                }
            }
            assert_eq!(last, want, "{name}: chunks and company, {kv}");
        }
    }
}

fn largest(row: &[f32]) -> Token {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as Token
}

/// Greedy drafts of an MTP layer along a prompt and its continuation, and its logits after the
/// prompt.
fn drafts(case: &Path, precision: Precision, ids: &[Token], greedy: &[Token]) -> (Vec<Token>, Vec<f32>) {
    let target = load_as(case, precision, 2, |model| &model.target).keeping(&[Tap::FinalNorm]).unwrap();
    let layer = load_as(case, precision, 2, |model| &model.predictions[0]);
    let session = |model: CpuModel| {
        let kv = model.natural_kv();
        let mut session = Session::new(&Arc::new(model), kv, CacheKind::Contiguous);
        let seq = session.open(ids, 512);
        (session, seq)
    };
    let ((mut target, target_seq), (mut layer, layer_seq)) = (session(target), session(layer));
    let mut state = |tokens: &[Token]| {
        target.pass(target_seq, tokens, tokens.len(), &[]);
        target.executor.tap(Tap::FinalNorm).unwrap().to_vec()
    };
    // Row i combines the hidden state of token i with token i + 1, so the layer is one token
    // behind.
    let next: Vec<Token> = ids[1..].iter().chain(&greedy[..1]).copied().collect();
    let first = layer.pass(layer_seq, &next, next.len() - 1, &state(ids));
    let mut drafts = vec![largest(&first)];
    for pair in greedy.windows(2) {
        drafts.push(largest(&layer.pass(layer_seq, &pair[1..], 0, &state(&pair[..1]))));
    }
    (drafts, first)
}

#[test]
fn mtp_layers_propose_the_recorded_drafts() {
    let mut seen = 0;
    for case in cases() {
        let text = std::fs::read_to_string(case.join("expected.json")).unwrap();
        let expected: Json = serde_json::from_str(&text).unwrap();
        let Some(mtp) = expected["mtp"].as_object() else { continue };
        for (prompt, record) in mtp["prompts"].as_object().unwrap() {
            let wanted = tokens(&record["drafts"]);
            let ids = tokens(&expected["prompts"][prompt]);
            let greedy = tokens(&expected["greedy"][prompt]["tokens"]);
            let logits = floats(&record["first_logits"]);
            let (ours, first) = drafts(&case, Precision::F32, &ids, &greedy[..wanted.len()]);
            let error = worst(&first, &logits);
            assert!(error < 1e-3, "{}: {error}", case.display());
            assert_eq!(ours, wanted, "{} {prompt}", case.display());
            let (_, near) = drafts(&case, Precision::Auto, &ids, &greedy[..1]);
            let off = worst(&near, &logits) / deviation(&logits);
            assert!(off < 0.05, "{} {prompt}: off by {off} of the deviation", case.display());
            seen += 1;
        }
    }
    assert!(seen >= 12, "only {seen}");
}

#[test]
fn tapped_values_have_the_bits_of_any_run() {
    let case = cases().into_iter().find(|case| case.ends_with("qwen3_bf16")).unwrap();
    let ids: Vec<Token> = (0..40).map(|i| i * 7 % 500).collect();
    let logits = |model: CpuModel| {
        let mut session = Session::new(&Arc::new(model), KvType::Bf16, CacheKind::Contiguous);
        let seq = session.open(&ids, 64);
        let logits = session.pass(seq, &ids, 0, &[]);
        let taps = [Tap::IntoLayer(0), Tap::OutOfLastLayer, Tap::FinalNorm];
        (logits, taps.map(|tap| session.executor.tap(tap).map(<[f32]>::to_vec)))
    };
    let model = || load_as(&case, Precision::Auto, 2, |model| &model.target);
    let (plain, none) = logits(model());
    assert_eq!(none, [None, None, None]);
    let every: Vec<Tap> = model().program().taps.iter().map(|(tap, _)| *tap).collect();
    let (kept, taps) = logits(model().keeping(&every).unwrap());
    assert_eq!(kept, plain);
    let width = model().program().hidden;
    assert!(taps.iter().all(|tap| tap.as_ref().is_some_and(|rows| rows.len() == ids.len() * width)));
    assert!(model().keeping(&[Tap::IntoLayer(99)]).is_err());
}

/// A checkpoint that records which weights were read and released.
struct Noting {
    checkpoint: Checkpoint,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    read: BTreeSet<String>,
    gone: BTreeSet<String>,
    /// Maximum number of weights that were read and not yet released.
    most: usize,
}

impl Noting {
    fn read(&self, name: &str) {
        let mut noted = self.noted.lock().unwrap();
        noted.read.insert(name.to_owned());
        noted.most = noted.most.max(noted.read.len());
    }
}

impl WeightSource for Noting {
    fn stored<'a>(&'a self, name: &'a str, shape: &'a [usize]) -> Result<Option<Stored<'a>>, Error> {
        self.checkpoint.stored(name, shape)
    }

    fn scaled<'a>(&'a self, name: &'a str) -> Result<Option<Scaled<'a>>, Error> {
        self.read(name);
        self.checkpoint.scaled(name)
    }

    fn nibbles<'a>(&'a self, name: &'a str) -> Result<Option<Nibbles<'a>>, Error> {
        self.read(name);
        self.checkpoint.nibbles(name)
    }

    fn dtype(&self, name: &str, shape: &[usize]) -> Result<Option<DType>, Error> {
        self.checkpoint.dtype(name, shape)
    }

    fn dense(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        self.read(name);
        WeightSource::dense(&self.checkpoint, name, shape)
    }

    fn row(&self, name: &str, shape: &[usize], n: usize, out: &mut [f32]) -> Result<(), Error> {
        self.read(name);
        self.checkpoint.row(name, shape, n, out)
    }

    fn release(&self, name: &str, _: Range<usize>) {
        let mut noted = self.noted.lock().unwrap();
        noted.read.remove(name);
        noted.gone.insert(name.to_owned());
    }
}

#[test]
fn a_weight_is_released_before_the_next_is_read() {
    for case in cases() {
        let checkpoint = Checkpoint::open(&case).unwrap();
        let program = Model::build(&checkpoint.source()).unwrap().target;
        let source = Arc::new(Noting { checkpoint, noted: Mutex::default() });
        CpuModel::load(&program, source.clone(), Precision::F32, Arc::new(ThreadPool::new(1))).unwrap();
        // Rows of an embedding table are read in place, so it is never released.
        let tables: Vec<_> = program
            .ops
            .iter()
            .filter_map(|op| match op {
                Op::Embed { table, .. } => Some(program.resolve(*table)),
                _ => None,
            })
            .map(|id| &program.weight(id).name)
            .collect();
        let noted = source.noted.lock().unwrap();
        assert_eq!(noted.most, 1, "{}", case.display());
        for weight in program.weights.iter().filter(|w| w.tie.is_none() && !tables.contains(&&w.name)) {
            assert!(noted.gone.contains(&weight.name), "{}: {}", case.display(), weight.name);
        }
    }
}

/// A checkpoint with one weight whose rows cannot be read by themselves, like FP8 without its
/// scales.
struct Lacking {
    checkpoint: Checkpoint,
    weight: String,
}

impl WeightSource for Lacking {
    fn stored<'a>(&'a self, name: &'a str, shape: &'a [usize]) -> Result<Option<Stored<'a>>, Error> {
        if name == self.weight { Ok(None) } else { self.checkpoint.stored(name, shape) }
    }

    fn dtype(&self, name: &str, shape: &[usize]) -> Result<Option<DType>, Error> {
        self.checkpoint.dtype(name, shape)
    }

    fn dense(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        WeightSource::dense(&self.checkpoint, name, shape)
    }
}

#[test]
fn unreadable_rows_fail_the_load() {
    let case = cases().into_iter().find(|case| case.ends_with("qwen3_bf16")).unwrap();
    for weight in ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"] {
        for precision in [Precision::Auto, Precision::F32] {
            let checkpoint = Checkpoint::open(&case).unwrap();
            let program = Model::build(&checkpoint.source()).unwrap().target;
            let source = Arc::new(Lacking { checkpoint, weight: weight.into() });
            let loaded = CpuModel::load(&program, source, precision, Arc::new(ThreadPool::new(2)));
            let error = loaded.err().unwrap().to_string();
            assert!(error.contains(weight) && error.contains("row by row"), "{error}");
        }
    }
}
