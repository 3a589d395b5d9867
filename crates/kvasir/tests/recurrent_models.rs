//! Models with recurrent layers on the plain backend: recorded tokens and logits in chunks of any
//! size, and logits that are bit-identical however a request runs.
//!
//! Compared to each request alone: batched, chunked, after a prefix cache hit at a checkpoint,
//! after preemption, with siblings, with drafts of any acceptance, on every cache under every policy.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod recorded_logits;

use kvasir::{AnyExecutor, AnyPending};
use kvasir_draft::{DraftModelKind, TreeShape};
use kvasir_engine::{
    Chunked, Chunking, Core, Drafter, Engine, EventOutput, Finish, Limits, Mixing, NgramDrafter, Order,
    Params, Policy, PrefillFirst, Proposal, Rectangular, RectangularConfig, Request, RequestId, Sequence,
    Turn,
};
use kvasir_exec::{Abilities, Executor, PoolRow, Refused, SequenceSpec, Step, StepError};
use kvasir_formats::Checkpoint;
use kvasir_kv::{CacheConfig, CacheKind, StateConfig, Token, build};
use kvasir_plain::{DraftSource, Drafting, Limits as PoolLimits, PlainExecutor, PlainModel};
use kvasir_program::{Model, Tap};
use kvasir_sample::Sampling;
use kvasir_testkit::{Random, paths};
use recorded_logits::RecordedLogits;
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};

/// Slots per block.
const BLOCK: u32 = 8;
/// Longest draft.
const DRAFTS: u32 = 4;

/// Wraps an executor and records the logits of each position of each request.
struct Listening {
    inner: AnyExecutor,
    logits: RecordedLogits,
    /// Requests that shared a step with others.
    in_company: BTreeSet<u64>,
}

impl Executor for Listening {
    type Pending = AnyPending;

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        self.inner.bind(row, spec);
    }

    fn submit(&mut self, mut step: Box<Step>) -> Result<AnyPending, Refused> {
        step.batch.logits = true;
        self.inner.submit(step)
    }

    fn wait(&mut self, pending: AnyPending) -> (Box<Step>, Result<(), StepError>) {
        let (step, result) = self.inner.wait(pending);
        assert_eq!(result, Ok(()));
        assert_eq!(step.output.draft_error, None);
        self.logits.record(&step);
        if step.batch.rows.len() > 1 {
            self.in_company.extend(step.batch.rows.iter().map(|row| row.request));
        }
        (step, result)
    }
}

/// What proposes drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drafts {
    None,
    Ngram,
    Oracle,
    Mtp,
}

/// Knows the outputs by tag, and corrupts one in five of its drafts.
struct Oracle {
    outputs: BTreeMap<u64, Vec<Token>>,
    random: Random,
}

impl Drafter for Oracle {
    fn width(&self) -> u32 {
        DRAFTS
    }

    fn proposes_trees(&self) -> bool {
        false
    }

    fn propose(&mut self, sequence: &Sequence, proposal: &mut Proposal) {
        let rest = &self.outputs[&sequence.tag()][sequence.outputs().len()..];
        for token in rest.iter().take(self.random.between(0, DRAFTS) as usize) {
            proposal.tokens.push(if self.random.one_in(5) { (token + 1) % 500 } else { *token });
        }
    }
}

/// How requests run.
#[derive(Clone, Copy, Debug)]
struct Setup {
    cache: CacheKind,
    policy: &'static str,
    slots: u32,
    checkpoints: u32,
    overlap: bool,
    drafts: Drafts,
    /// Whether a running request is preempted now and then.
    preempts: bool,
}

/// One request at a time, whole prompts, no drafts.
const ALONE: Setup = Setup {
    cache: CacheKind::Contiguous,
    policy: "whole",
    slots: 400,
    checkpoints: 0,
    overlap: false,
    drafts: Drafts::None,
    preempts: false,
};

/// Coverage of a run, so that a vacuous test fails.
#[derive(Debug, Default)]
struct Seen {
    hits: u32,
    preemptions: u32,
    accepted: u32,
    rejected: u32,
    in_company: usize,
}

/// Output of a request: tokens, and logits of each sampled position.
type Answered = (Vec<Token>, BTreeMap<u32, Vec<u32>>);

impl Setup {
    fn policy(&self) -> Box<dyn Policy> {
        match self.policy {
            "whole" => Box::new(PrefillFirst::new(Chunking::Off, 0.0)),
            "prefill-first" => Box::new(PrefillFirst::new(Chunking::On { cap: Some(17) }, 0.0)),
            "chunked" => Box::new(Chunked::new(13, Mixing::Off)),
            "mixed" => Box::new(Chunked::new(19, Mixing::On { target: None })),
            "tokens" => Box::new(Chunked::new(1, Mixing::Off)),
            "rectangular" => Box::new(Rectangular::new(RectangularConfig {
                chunk_size: 2 * BLOCK,
                max_batch: 4,
                ..RectangularConfig::default()
            })),
            other => panic!("no policy {other}"),
        }
    }

    /// An engine; `outputs` are those that the oracle drafts.
    fn engine(&self, model: &PlainModel, outputs: &BTreeMap<u64, Answered>) -> Engine<Listening> {
        let is_rectangular = self.policy == "rectangular";
        let max_num_seqs = if self.cache.holds_one_sequence() { 1 } else { 5 };
        let states = StateConfig {
            live: max_num_seqs,
            checkpoints: self.checkpoints,
            tail_rows: DRAFTS,
            interval: 4 * BLOCK,
        };
        let config = CacheConfig {
            block_size: if self.cache.is_block_based() { BLOCK } else { 1 },
            max_sequences: 16,
            sharing: true,
            dummy: is_rectangular,
            states: Some(states),
            ..CacheConfig::new(self.slots)
        };
        let limits = Limits {
            max_num_seqs,
            max_num_batched_tokens: if is_rectangular || self.policy == "whole" { 400 } else { 24 },
            max_model_len: 200,
            prefix_cache: self.cache.is_block_based(),
            ..Limits::default()
        };
        let cache = build(self.cache, &config).unwrap();
        let slots = cache.shape().capacity + BLOCK;
        let pool = PoolLimits { slots, tokens: 400, rows: 16, states: Some(states) };
        let mut inner = PlainExecutor::new(model, pool);
        let shape = TreeShape::chain(DRAFTS);
        if self.drafts == Drafts::Mtp {
            let program = model.program();
            let kind = DraftModelKind {
                hidden: program.hidden,
                target_vocab: program.vocab,
                ..DraftModelKind::default()
            };
            let taps = (Some(Tap::FinalNorm), Some(Tap::FinalNorm));
            let drafting = Drafting::new(model, DraftSource::Prediction, kind, shape, pool, taps);
            inner = inner.drafting(drafting.unwrap());
        }
        let inner = AnyExecutor::Plain(inner);
        let inner = if self.overlap { inner.on_thread().unwrap() } else { inner };
        let logits = RecordedLogits::new(model.program().vocab);
        let listening = Listening { inner, logits, in_company: BTreeSet::new() };
        let core = Core::new(limits, Order::Fcfs, self.policy(), cache);
        let engine = Engine::new(core, listening, || 0).overlap(self.overlap);
        match self.drafts {
            Drafts::None => engine,
            Drafts::Ngram => engine.draft(Box::new(NgramDrafter::new(1, DRAFTS))).unwrap(),
            Drafts::Oracle => {
                let outputs = outputs.iter().map(|(tag, (tokens, _))| (*tag, tokens.clone())).collect();
                engine.draft(Box::new(Oracle { outputs, random: Random::new(3) })).unwrap()
            }
            Drafts::Mtp => engine.draft_in_executor(DRAFTS, DRAFTS, false).unwrap(),
        }
    }

    /// Runs requests that arrive one by one, each with `n` siblings; returns outputs by tag.
    /// `expected` are the outputs that an oracle drafts.
    fn run(
        &self,
        model: &PlainModel,
        requests: &[Request],
        n: u32,
        expected: &BTreeMap<u64, Answered>,
        seen: &mut Seen,
    ) -> BTreeMap<u64, Answered> {
        let mut engine = self.engine(model, expected);
        let (mut answered, mut ids) = (BTreeMap::<u64, Answered>::new(), BTreeMap::<u64, RequestId>::new());
        let mut waiting = requests.iter();
        for turn in 0.. {
            if turn % 3 == 0
                && let Some(request) = waiting.next()
            {
                let added = engine.core_mut().add_siblings(request.clone(), n, 0).unwrap();
                ids.extend((request.tag..).zip(added));
            }
            let done = engine.step().unwrap();
            if self.preempts && turn % 7 == 5 {
                ids.values().rev().any(|id| engine.core_mut().preempt(*id));
            }
            engine.core().cache().check().unwrap();
            let outbox = engine.core_mut().outbox();
            for EventOutput { event, tokens, .. } in outbox.iter() {
                answered.entry(event.tag).or_default().0.extend_from_slice(tokens);
            }
            for ended in outbox.ended.drain(..) {
                assert_eq!(ended.finish, Finish::MaxTokens, "{self:?}");
                seen.hits += u32::from(ended.cached > 0);
                seen.preemptions += ended.preemptions;
                seen.accepted += ended.accepted;
                seen.rejected += ended.drafted - ended.accepted;
            }
            outbox.clear();
            if done == Turn::Idle && waiting.len() == 0 {
                break;
            }
            assert!(turn < 4000, "no end in sight");
        }
        seen.in_company += engine.executor().in_company.len();
        for (tag, (_, logits)) in &mut answered {
            *logits = engine.executor().logits.of(ids[tag].0);
        }
        answered
    }
}

/// A model with recurrent layers, and its folder.
struct Case {
    name: String,
    model: PlainModel,
    expected: Json,
}

/// The recorded checkpoints with recurrent layers: of the repository, or those under
/// `KVASIR_MODELS`.
fn cases() -> Vec<Case> {
    let folder = std::env::var_os("KVASIR_MODELS").map_or_else(|| paths::model(""), Into::into);
    let mut all: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.join("config.json").exists() && path.join("expected.json").exists());
    all.sort();
    let open = |path: std::path::PathBuf| {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let model = Model::build(&checkpoint.source()).ok()?;
        if !model.target.is_recurrent() {
            return None;
        }
        let text = std::fs::read_to_string(path.join("expected.json")).unwrap();
        let (model, expected) =
            (PlainModel::load(&model, &checkpoint).unwrap(), serde_json::from_str(&text).unwrap());
        Some(Case { name: path.file_name().unwrap().to_string_lossy().into_owned(), model, expected })
    };
    let cases: Vec<Case> = all.into_iter().filter_map(open).collect();
    assert!(cases.len() >= 10, "only {} recurrent models", cases.len());
    cases
}

fn ids(json: &Json) -> Vec<Token> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as Token).collect()
}

fn tokens(n: usize, salt: usize) -> Vec<Token> {
    (0..n).map(|i| ((i * 37 + salt * 101 + 11) % 500) as Token).collect()
}

/// Requests with common prefixes and various temperatures. Two of them repeat themselves, so that
/// n-gram drafts are proposed.
fn requests(model: &PlainModel) -> Vec<Request> {
    let trunk = [tokens(20, 1), tokens(20, 1), tokens(13, 7)].concat();
    let on = |tail: usize, salt: usize| [&trunk[..], &tokens(tail, salt)].concat();
    let all = [
        (on(5, 2), 14, 0.0),
        (tokens(23, 3), 14, 0.9),
        (on(9, 4), 12, 0.0),
        (on(5, 2), 9, 0.8),
        (tokens(3, 5), 20, 0.0),
        (on(1, 6), 6, 1.2),
    ];
    let request = |(tag, (prompt, max_tokens, temperature)): (usize, (Vec<Token>, u32, f32))| {
        let sampling = Sampling { temperature, seed: tag as u64 + 7, ..Sampling::default() };
        let salt = model.program().prefix_salt(prompt.len() as u32 + max_tokens);
        let params = Params { max_tokens, ignore_eos: true, sampling, salt, ..Params::default() };
        Request { tag: tag as u64 * 10, prompt, params }
    };
    all.into_iter().enumerate().map(request).collect()
}

/// The outputs of each request and each of its `n` siblings, which run alone.
fn alone(model: &PlainModel, requests: &[Request], n: u64) -> BTreeMap<u64, Answered> {
    let mut answered = BTreeMap::new();
    for request in requests {
        for i in 0..n {
            let mut one = request.clone();
            one.tag += i;
            one.params.sampling.seed += i;
            answered.append(&mut ALONE.run(model, &[one], 1, &BTreeMap::new(), &mut Seen::default()));
        }
    }
    answered
}

fn compare(about: &str, expected: &BTreeMap<u64, Answered>, outputs: &BTreeMap<u64, Answered>) {
    assert!(outputs.keys().eq(expected.keys()), "{about}");
    for (tag, (tokens, logits)) in expected {
        assert_eq!(tokens, &outputs[tag].0, "{about}: tokens of request {tag}");
        // Drafts beyond the end of an output are computed, too.
        for (position, bits) in logits {
            assert!(outputs[tag].1.get(position) == Some(bits), "{about}: logits of {tag} at {position}");
        }
    }
}

/// Runs the requests of a case in each setup and compares them to each request alone.
fn check(case: &Case, setups: impl IntoIterator<Item = Setup>, n: u32) -> Seen {
    let requests = requests(&case.model);
    let expected = alone(&case.model, &requests, n.into());
    let mut seen = Seen::default();
    for setup in setups {
        let outputs = setup.run(&case.model, &requests, n, &expected, &mut seen);
        compare(&format!("{} {setup:?}", case.name), &expected, &outputs);
    }
    println!("{}: {seen:?}", case.name);
    seen
}

/// Every cache under every policy that works with it.
fn setups(policies: &[&'static str]) -> Vec<Setup> {
    let pairs = CacheKind::ALL.iter().flat_map(|cache| policies.iter().map(move |policy| (*cache, *policy)));
    let valid = pairs.filter(|(cache, policy)| *policy != "rectangular" || cache.is_block_based());
    valid.map(|(cache, policy)| Setup { cache, policy, checkpoints: 12, ..ALONE }).collect()
}

#[test]
fn every_chunk_size_gives_the_recorded_tokens_and_logits() {
    for case in cases() {
        let setups = [
            (CacheKind::Contiguous, "tokens"),
            (CacheKind::Tree, "whole"),
            (CacheKind::Cells, "chunked"),
            (CacheKind::Paged, "rectangular"),
            (CacheKind::Radix, "tokens"),
        ];
        for (cache, policy) in setups {
            let setup = Setup { cache, policy, checkpoints: 12, ..ALONE };
            let mut error: f32 = 0.0;
            for (prompt, greedy) in case.expected["greedy"].as_object().unwrap() {
                let (about, expected) = (format!("{} {prompt} {setup:?}", case.name), ids(&greedy["tokens"]));
                let max_tokens = expected.len() as u32;
                let params = Params { max_tokens, ignore_eos: true, ..Params::default() };
                let request = Request { tag: 1, prompt: ids(&case.expected["prompts"][prompt]), params };
                if request.prompt.len() + expected.len() > 200 {
                    continue;
                }
                let last = request.prompt.len() as u32 - 1;
                let outputs = setup.run(&case.model, &[request], 1, &BTreeMap::new(), &mut Seen::default());
                assert_eq!(outputs[&1].0, expected, "{about}");
                let logits = case.expected["final_logits"][prompt].as_array().unwrap();
                for (ours, recorded) in outputs[&1].1[&last].iter().zip(logits) {
                    error = error.max((f32::from_bits(*ours) - recorded.as_f64().unwrap() as f32).abs());
                }
            }
            assert!(error < 1e-3, "{} {setup:?}: logits differ by {error}", case.name);
        }
    }
}

#[test]
fn every_cache_and_policy_gives_the_bits_of_requests_alone() {
    for case in cases() {
        let all = setups(&["whole", "prefill-first", "chunked", "mixed", "rectangular"]);
        let all = all.into_iter().enumerate().map(|(at, setup)| Setup { overlap: at % 2 == 1, ..setup });
        let seen = check(&case, all, 1);
        assert!(seen.hits >= 8 && seen.in_company > 50, "{}: {seen:?}", case.name);
    }
}

#[test]
fn preempted_requests_continue_with_the_same_bits() {
    for case in cases() {
        let all = setups(&["chunked", "mixed", "rectangular"]).into_iter().enumerate();
        let all = all.map(|(at, setup)| Setup {
            // One sequence fits, and a part of another.
            slots: if at % 2 == 0 { 104 } else { 800 },
            checkpoints: [0, 3, 12][at % 3],
            overlap: at % 4 < 2,
            preempts: true,
            ..setup
        });
        let seen = check(&case, all, 1);
        assert!(seen.preemptions > 20, "{}: {seen:?}", case.name);
    }
}

#[test]
fn siblings_of_a_recurrent_model_share_their_prompt() {
    for case in cases() {
        let kinds = [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix];
        let setups =
            kinds.map(|cache| Setup { cache, policy: "mixed", slots: 800, checkpoints: 12, ..ALONE });
        let seen = check(&case, setups, 3);
        assert!(seen.hits > 6, "{}: {seen:?}", case.name);
    }
}

#[test]
fn drafts_leave_no_trace_in_recurrent_states() {
    let mut with_mtp = 0;
    for case in cases() {
        let drafted = |drafts| {
            let setups = setups(&["chunked", "mixed"]);
            check(&case, setups.into_iter().map(|setup| Setup { drafts, ..setup }), 1)
        };
        let seen = drafted(Drafts::Oracle);
        assert!(seen.rejected > 20 && seen.accepted > 100, "{}: {seen:?}", case.name);
        let seen = drafted(Drafts::Ngram);
        assert!(seen.rejected > 5, "{}: {seen:?}", case.name);
        if case.expected["mtp"].is_object() {
            let seen = drafted(Drafts::Mtp);
            assert!(seen.rejected > 20, "{}: {seen:?}", case.name);
            with_mtp += 1;
        }
    }
    assert!(with_mtp > 0, "no case has a prediction layer");
}
