//! Speculative decoding on real weights: outputs that do not depend on any drafter.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod recorded;
mod rejection;

use kvasir::{
    Answer, BackendKind, Branch, CacheKind, CacheOptions, DraftWidth, Dry, KvType, Kvasir, Mirostat, Model,
    OpenedModel, Options, Params, Precision, Prompt, Sampler, SamplerChain, Sampling, Session, Speculation,
    Token,
};
use kvasir_engine::{Chunked, Core, Limits, Mixing, Order, Rectangular, RectangularConfig};
use kvasir_exec::TokenLogprobs;
use kvasir_kv::{CacheConfig, build};
use kvasir_sample::{Allowed, Constrained, Constraint, Follower};
use kvasir_testkit::paths;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The checkpoints without recurrent layers.
fn cases() -> Vec<PathBuf> {
    let mut all: Vec<_> =
        std::fs::read_dir(paths::model("")).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| !OpenedModel::open(path).is_ok_and(|opened| opened.model.target.is_recurrent()));
    all.sort();
    all
}

/// How an engine runs.
#[derive(Clone, Debug)]
struct Setup {
    backend: BackendKind,
    precision: Precision,
    kv: KvType,
    cache: CacheKind,
    slots: u32,
}

impl Setup {
    fn cpu(cache: CacheKind) -> Self {
        let (backend, precision) = (BackendKind::Cpu, Precision::F32);
        Self { backend, precision, kv: KvType::F32, cache, slots: 512 }
    }

    fn engine(&self, opened: OpenedModel, spec: Option<&Speculation>) -> Kvasir {
        let opened = match spec {
            Some(spec) => opened.speculate(spec).unwrap(),
            None => opened,
        };
        let loaded = opened.load(self.backend.clone(), self.precision, Some(1)).unwrap();
        let model = Model::new(loaded.with_kv(self.kv).unwrap()).unwrap();
        let block_size = if self.cache.is_block_based() { 4 } else { 1 };
        let cache = build(self.cache, &CacheConfig { block_size, ..CacheConfig::new(self.slots) }).unwrap();
        let max_num_seqs = if self.cache.holds_one_sequence() { 1 } else { 8 };
        let limits =
            Limits { max_num_seqs, max_num_batched_tokens: 256, max_model_len: 512, ..Limits::default() };
        let policy = Chunked::new(24, Mixing::On { target: None });
        let core = Core::new(limits, Order::Fcfs, Box::new(policy), cache);
        Kvasir::with_core(model, core, false).unwrap()
    }
}

/// A checkpoint on the CPU that decodes speculatively.
fn engine(case: &Path, spec: Option<&Speculation>, cache: CacheKind) -> Kvasir {
    Setup::cpu(cache).engine(OpenedModel::open(case).unwrap(), spec)
}

fn spec(text: &str) -> Speculation {
    let mut spec: Speculation = text.parse().unwrap();
    spec.parameters.width = DraftWidth::Fixed;
    spec
}

/// Requests that share prefixes, repeat themselves, sample and stop in every way.
fn requests() -> Vec<(Vec<Token>, Params)> {
    let base: Vec<Token> = (0..40).map(|i| 20 + (i * 7) % 11).collect();
    let with =
        |sampling: Sampling| Params { max_tokens: 24, ignore_eos: true, sampling, ..Params::default() };
    let warm = Sampling { temperature: 0.8, seed: 5, logprobs: Some(3), ..Sampling::default() };
    let penal =
        Sampling { repetition_penalty: 1.2, presence_penalty: 0.5, temperature: 1.1, top_k: 40, ..warm };
    let stops = Params { stop_ids: (0..40).collect(), min_tokens: 6, ..with(warm) };
    vec![
        (base.clone(), with(Sampling { logprobs: Some(0), ..Sampling::default() })),
        (base[..30].to_vec(), with(warm)),
        ([&base[..20], &[3, 4, 5, 3, 4, 5, 3, 4]].concat(), with(penal)),
        (vec![9, 8, 7], with(Sampling { frequency_penalty: 0.7, ..Sampling::default() })),
        (base[..12].to_vec(), stops),
        (base[..24].to_vec(), Params { chain: Some(chain().into()), ..with(warm) }),
        (base[..16].to_vec(), Params { chain: Some(mirostat().into()), ..with(warm) }),
    ]
}

/// A chain with all of llama.cpp's samplers, in its default order.
fn chain() -> SamplerChain {
    SamplerChain {
        order: Sampler::llama_cpp_order(),
        typical_p: 0.95,
        top_n_sigma: 3.0,
        xtc_probability: 0.5,
        xtc_threshold: 0.05,
        penalty_last_n: Some(12),
        dynatemp_range: 0.3,
        dry: Some(Dry { multiplier: 0.8, ..Dry::default() }),
        ..SamplerChain::default()
    }
}

fn mirostat() -> SamplerChain {
    let mirostat = Mirostat { tau: 3.0, eta: 0.4, ..Mirostat::default() };
    SamplerChain { mirostat: Some(mirostat), ..SamplerChain::default() }
}

fn outputs(kvasir: &mut Kvasir) -> Vec<Answer> {
    let requests: Vec<_> =
        requests().into_iter().map(|(prompt, params)| (Prompt::Ids(prompt), params)).collect();
    kvasir.generate_many(requests).unwrap()
}

/// What must not depend on drafts: tokens, log-probabilities and the reason of the end.
fn essence(answers: &[Answer]) -> Vec<(Vec<Token>, Vec<TokenLogprobs>, String)> {
    let one = |answer: &Answer| (answer.ids.clone(), answer.logprobs.clone(), answer.reason.to_string());
    answers.iter().map(one).collect()
}

/// Outputs of every test checkpoint with every drafter that it can have, beside those without.
#[test]
fn outputs_do_not_depend_on_the_drafter() {
    let (mut drafted, mut accepted) = ([0; 5], [0; 5]);
    for case in cases() {
        if !case.join("model.safetensors").exists() && !case.join("model.safetensors.index.json").exists() {
            continue;
        }
        // A pool that is too small for all requests preempts.
        let radix = Setup::cpu(CacheKind::Radix);
        let setups = [
            radix.clone(),
            Setup { cache: CacheKind::Cells, kv: KvType::F16, ..radix.clone() },
            Setup { cache: CacheKind::Paged, slots: 120, ..radix.clone() },
        ];
        let run = |setup: &Setup, spec: Option<&Speculation>| {
            outputs(&mut setup.engine(OpenedModel::open(&case).unwrap(), spec))
        };
        let plain = [KvType::F32, KvType::F16].map(|kv| essence(&run(&Setup { kv, ..radix.clone() }, None)));
        let own = format!("draft:{},depth=3", case.display());
        let head = format!("eagle3:{},depth=3,topk=2,nodes=5", case.join("draft").display());
        let methods = ["ngram:n=2,tokens=5", "suffix:tokens=6", "mtp:2", &head, &own];
        for (at, method) in methods.into_iter().enumerate() {
            let applies = match at {
                2 => OpenedModel::open(&case).unwrap().model.predictions.len() == 1,
                3 => case.join("draft").exists(),
                _ => true,
            };
            if !applies {
                continue;
            }
            for setup in &setups {
                let answers = run(setup, Some(&spec(method)));
                drafted[at] += answers.iter().map(|answer| answer.drafted).sum::<u32>();
                accepted[at] += answers.iter().map(|answer| answer.accepted).sum::<u32>();
                let plain = &plain[usize::from(setup.kv == KvType::F16)];
                assert_eq!(essence(&answers), *plain, "{} with {method}, {setup:?}", case.display());
            }
        }
    }
    assert!(drafted.iter().all(|n| *n > 100) && accepted.iter().all(|n| *n > 5), "{drafted:?} {accepted:?}");
    // A model that drafts for itself draws with the same noise. Penalties are the target's alone.
    let share = f64::from(accepted[4]) / f64::from(drafted[4]);
    assert!(share > 0.5, "{share}");
}

#[test]
fn the_built_in_model_drafts_with_its_own_layer_and_head() {
    for (precision, kv) in [(Precision::F32, KvType::F32), (Precision::Auto, KvType::Q8_0)] {
        built_in_drafts(&Setup { precision, kv, ..Setup::cpu(CacheKind::Radix) });
    }
}

fn built_in_drafts(setup: &Setup) {
    let generate = |text: Option<&str>| {
        let mut kvasir = setup.engine(OpenedModel::built_in().unwrap(), text.map(spec).as_ref());
        let request = |question: &str| {
            let sampling = Sampling { logprobs: Some(1), ..Sampling::default() };
            let chat = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
            (Prompt::Text(chat), Params { max_tokens: 80, sampling, ..Params::default() })
        };
        let questions =
            ["What is the capital of Italy?", "Sort 9, 4, 7, 1, 8.", "What is 17 + 25?", "Who are you?"];
        kvasir.generate_many(questions.map(request).to_vec()).unwrap()
    };
    let plain = generate(None);
    let tokens: usize = plain.iter().map(|answer| answer.ids.len()).sum();
    for method in ["mtp:3", "eagle3:depth=3", "eagle3:depth=3,topk=3,nodes=6"] {
        let answers = generate(Some(method));
        assert_eq!(essence(&answers), essence(&plain), "{method}, {setup:?}");
        let drafted: u32 = answers.iter().map(|answer| answer.drafted).sum();
        let accepted: u32 = answers.iter().map(|answer| answer.accepted).sum();
        // More than one accepted draft per step: half of the tokens are drafts.
        assert!(2 * accepted as usize > tokens, "{method}: {accepted} of {drafted}");
    }
}

/// What the branches of a session say, through forks, a rewind and a cut; and the accepted drafts.
fn converse(case: &Path, method: Option<&str>, kind: CacheKind) -> (Vec<Vec<Token>>, u32) {
    let opened = OpenedModel::open(case).unwrap();
    let opened = match method {
        Some(method) => opened.speculate(&spec(method)).unwrap(),
        None => opened,
    };
    let options = Options { precision: Precision::F32, threads: Some(1), ..Options::default() };
    let kvasir = Kvasir::of(opened, options).unwrap();
    let cache = CacheOptions::new(kind).capacity(1024);
    let cache = if kind.is_block_based() { cache.block_size(4) } else { cache };
    let mut session = kvasir.session(cache).unwrap();
    let (mut answers, mut accepted) = (Vec::new(), 0);
    let mut generate = |session: &mut Session, branches: &[Branch]| {
        let sampling = Sampling { temperature: 0.6, seed: 4, ..Sampling::default() };
        let params = Params { max_tokens: 24, ignore_eos: true, sampling, ..Params::default() };
        for answer in session.generate_all(branches, &params).unwrap() {
            accepted += answer.accepted;
            answers.push(answer.ids);
        }
    };
    let main = session.main();
    session.append(main, requests()[0].0.clone()).unwrap();
    generate(&mut session, &[main]);
    let forks = session.fork(main, 2).unwrap();
    session.append(forks[0], vec![9, 8]).unwrap();
    session.append(forks[1], vec![7]).unwrap();
    generate(&mut session, &[main, forks[0], forks[1]]);
    session.rewind(main, 50).unwrap();
    session.cut(forks[1], 8..20).unwrap();
    session.append(main, vec![3]).unwrap();
    generate(&mut session, &[main, forks[1]]);
    (answers, accepted)
}

#[test]
fn sessions_answer_the_same_with_drafts() {
    let mut accepted = [0; 3];
    for (case, method) in [("eagle3_llama", "eagle3"), ("glm4_moe", "mtp:2"), ("qwen3", "suffix:tokens=4")] {
        let case = paths::model(case);
        let method = match method {
            "eagle3" => format!("eagle3:{},depth=3,topk=2,nodes=5", case.join("draft").display()),
            other => other.to_owned(),
        };
        for (at, kind) in [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix].into_iter().enumerate() {
            let (answers, count) = converse(&case, Some(&method), kind);
            assert_eq!(answers, converse(&case, None, kind).0, "{method} on {kind}");
            accepted[at] += count;
        }
    }
    assert!(accepted.iter().all(|count| *count > 5), "{accepted:?}");
}

#[test]
fn adaptive_width_changes_no_output() {
    let head = format!("eagle3:{}", paths::model("eagle3_llama").join("draft").display());
    let mut tree = spec(&format!("{head},depth=3,topk=3,nodes=7"));
    tree.parameters.width = DraftWidth::Adaptive;
    let parsed = |text: &str| text.parse::<Speculation>().unwrap();
    let cases = [
        ("qwen3", parsed("suffix")),
        ("qwen3", parsed("ngram")),
        ("glm4_moe", parsed("mtp")),
        ("eagle3_llama", parsed(&head)),
        ("eagle3_llama", tree),
    ];
    for (name, spec) in cases {
        let case = paths::model(name);
        let plain = outputs(&mut engine(&case, None, CacheKind::Radix));
        let mut kvasir = engine(&case, Some(&spec), CacheKind::Radix);
        // The first steps run without drafts.
        let (mut drafted, rounds) = (0, 4);
        for _ in 0..rounds {
            let answers = outputs(&mut kvasir);
            drafted += answers.iter().map(|answer| answer.drafted).sum::<u32>();
            assert_eq!(essence(&answers), essence(&plain), "{name} with {spec:?}");
        }
        println!("{name} with {spec:?}: {drafted} drafts");
    }
}

/// Allows exactly one answer, and nothing behind it.
#[derive(Debug)]
struct Exactly(Vec<Token>);

impl Constraint for Exactly {
    fn follow(&self) -> Box<dyn Follower> {
        Box::new(ExactlyFollower { answer: self.0.clone(), mask: Vec::new() })
    }
}

#[derive(Debug)]
struct ExactlyFollower {
    answer: Vec<Token>,
    mask: Vec<u32>,
}

impl Follower for ExactlyFollower {
    fn allowed(&mut self, output: &[Token]) -> Allowed<'_> {
        let Some(next) = self.answer.get(output.len()).filter(|_| self.answer.starts_with(output)) else {
            return Allowed::Nothing;
        };
        self.mask = vec![0; *next as usize / 32 + 1];
        self.mask[*next as usize / 32] |= 1 << (next % 32);
        Allowed::Only(&self.mask)
    }

    fn expect(&mut self, _: &[Token]) {}
}

#[test]
fn drafts_end_at_a_dead_end_of_the_constraint_as_without() {
    let case = paths::model("qwen3");
    let prompt: Vec<Token> = vec![5, 6, 7, 8, 9, 10, 11, 12, 5, 6];
    // The dead end lies behind one, two and three tokens; a stop token at the end comes before it.
    for (len, stop) in [(1, None), (2, None), (3, None), (3, Some(9))] {
        let answer = |spec: Option<&Speculation>| {
            let constraint = Constrained(Some(Arc::new(Exactly(prompt[2..2 + len].to_vec()))));
            let stop_ids = stop.into_iter().collect();
            let params =
                Params { max_tokens: 24, ignore_eos: true, constraint, stop_ids, ..Params::default() };
            let mut kvasir = engine(&case, spec, CacheKind::Radix);
            kvasir.generate(prompt.as_slice(), &params).unwrap()
        };
        let (plain, drafted) = (answer(None), answer(Some(&spec("ngram:n=2,tokens=5"))));
        assert_eq!((&drafted.ids, &drafted.reason), (&plain.ids, &plain.reason), "{len} {stop:?}");
        assert_eq!(plain.ids, prompt[2..2 + len]);
        assert_eq!(drafted.accepted as usize, len - 1);
    }
}

#[test]
fn what_cannot_combine_is_refused_by_name() {
    let open = || OpenedModel::open(&paths::model("eagle3_llama")).unwrap();
    let refused =
        |spec: &str| open().speculate(&spec.parse().unwrap()).err().map(|error| error.to_string()).unwrap();
    assert!(refused("mtp").contains("no multi-token-prediction layer"));
    assert!(refused(&format!("eagle3:{}", paths::model("qwen3").display())).contains("EAGLE-3"));
    assert!(refused("eagle3:/nowhere").contains("/nowhere"));
    let pickled = kvasir_testkit::paths::scratch(env!("CARGO_TARGET_TMPDIR"), "pickled_head");
    std::fs::copy(paths::model("eagle3_llama/draft/config.json"), pickled.join("config.json")).unwrap();
    std::fs::write(pickled.join("pytorch_model.bin"), "").unwrap();
    let error = refused(&format!("eagle3:{}", pickled.display()));
    assert!(error.contains("`pytorch_model.bin` only") && error.contains("save them as"), "{error}");
    assert!(refused("eagle3").contains("only the built-in model"));
    assert!(refused(&format!("draft:{}", paths::built_in_model().display())).contains("draft:"));
    let draft = paths::model("eagle3_llama").join("draft");
    let spec: Speculation = format!("eagle3:{}", draft.display()).parse().unwrap();
    let model =
        Model::new(open().speculate(&spec).unwrap().load(BackendKind::Cpu, Precision::F32, Some(1)).unwrap());
    let cache = build(CacheKind::Contiguous, &CacheConfig::new(64)).unwrap();
    let core = Core::new(Limits::default(), Order::Fcfs, Box::new(Chunked::new(64, Mixing::Off)), cache);
    let error = Kvasir::with_core(model.unwrap(), core, false).err().map(|error| error.to_string()).unwrap();
    assert!(error.contains("cache contiguous"), "{error}");
    let suffix = || open().speculate(&"suffix".parse().unwrap()).unwrap();
    let model = Model::new(suffix().load(BackendKind::Cpu, Precision::F32, Some(1)).unwrap()).unwrap();
    let cache = build(CacheKind::Paged, &CacheConfig { block_size: 16, ..CacheConfig::new(512) }).unwrap();
    let policy = Rectangular::new(RectangularConfig::default());
    let core = Core::new(Limits::default(), Order::Fcfs, Box::new(policy), cache);
    let error = Kvasir::with_core(model, core, false).err().map(|error| error.to_string()).unwrap();
    assert!(error.contains("policy rectangular"), "{error}");
}
