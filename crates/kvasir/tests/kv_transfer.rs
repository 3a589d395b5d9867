//! K/V transfer on real weights: dense models, mixtures of experts, latent and sparse attention,
//! sliding windows, every storage type, both backends, draft models. The second engine computes
//! less than a block of the prompt, and the tokens equal those of one engine.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir::{
    AnyExecutor, BackendKind, CacheKind, KvType, LoadedModel, OpenedModel, Params, Precision, Sampling,
    Speculation, Token,
};
use kvasir_engine::{
    Chunked, Core, Engine, KvExport, KvImport, Limits, Mixing, Order, Request, Resumption, Turn,
};
use kvasir_kv::{CacheConfig, build};
use kvasir_testkit::{complete::complete, paths};
use std::sync::{Arc, Mutex};

const BLOCK: u32 = 4;

struct Case {
    name: &'static str,
    backend: BackendKind,
    kv: Option<KvType>,
    spec: Option<String>,
}

impl Case {
    fn new(name: &'static str) -> Self {
        Self { name, backend: BackendKind::Cpu, kv: None, spec: None }
    }

    fn load(&self) -> LoadedModel {
        let opened = OpenedModel::open(&paths::model(self.name)).unwrap();
        let opened = match &self.spec {
            Some(spec) => opened.speculate(&spec.parse::<Speculation>().unwrap()).unwrap(),
            None => opened,
        };
        let loaded = opened.load(self.backend.clone(), Precision::F32, Some(1)).unwrap();
        match self.kv {
            Some(kv) => loaded.with_kv(kv).unwrap(),
            None => loaded,
        }
    }

    fn what(&self) -> String {
        format!("{} {:?} {:?} {:?}", self.name, self.backend, self.kv, self.spec)
    }
}

fn engine(loaded: &LoadedModel, kind: CacheKind, slots: u32) -> Engine<AnyExecutor> {
    let cache = build(kind, &CacheConfig { block_size: BLOCK, ..CacheConfig::new(slots) }).unwrap();
    let limits =
        Limits { max_num_seqs: 4, max_num_batched_tokens: 32, max_model_len: 120, ..Limits::default() };
    let core = Core::new(limits, Order::Fcfs, Box::new(Chunked::new(11, Mixing::On { target: None })), cache);
    // With drafts, a step waits for the tokens of the one before.
    loaded.engine(core, loaded.speculation().is_none()).unwrap()
}

/// Runs a request on one engine until its prompt is exported and it has a token, and then on
/// another. Returns its tokens, the number of prompt tokens that the second engine had cached, and
/// the transferred rows.
fn transfer(
    [mut first, mut second]: [Engine<AnyExecutor>; 2],
    request: &Request,
) -> (Vec<Token>, u32, Vec<u8>) {
    let exports = Arc::<Mutex<Vec<KvExport>>>::default();
    let to = Arc::clone(&exports);
    let layout = first.export_kv(Arc::new(move |export| to.lock().unwrap().push(export))).unwrap();
    assert_eq!(second.kv_layout(), Ok(layout));
    let params = Params { hand_off: Some(0), ..request.params.clone() };
    first.add_request(Request { params, ..request.clone() }).unwrap();
    let (mut outputs, mut is_last, mut rows) = (Vec::new(), false, Vec::new());
    while !is_last || outputs.is_empty() {
        assert_eq!(first.step(), Ok(Turn::Ran), "it ends before it moves");
        outputs.extend_from_slice(&first.core_mut().outbox().tokens);
        first.core_mut().outbox().clear();
        for export in exports.lock().unwrap().drain(..) {
            is_last |= export.is_last;
            rows.extend_from_slice(&export.rows);
            let tokens = request.prompt[..(export.start + export.tokens) as usize].to_vec();
            if export.tokens > 0 {
                let (salt, start) = (request.params.salt, export.start);
                second.import_kv(KvImport { salt, tokens, start, rows: export.rows });
            }
        }
    }
    let whole = request.prompt.len() as u32 / BLOCK * BLOCK;
    let imports = std::mem::take(&mut second.core_mut().outbox().imports);
    assert_eq!((imports.stored, imports.refused), (whole, 0));
    let resumption = Resumption { outputs: outputs.clone(), ..Resumption::default() };
    let params = Params { resumption: Some(resumption.into()), ..request.params.clone() };
    let answer = complete(&mut second, Request { params, ..request.clone() });
    outputs.extend(answer.tokens);
    (outputs, answer.summary.cached, rows)
}

#[test]
fn an_answer_continues_from_transferred_rows() {
    let eagle = |name| format!("eagle3:{},depth=3", paths::model(name).join("draft").display());
    let mut cases: Vec<Case> =
        ["qwen3_moe", "deepseek_v3", "deepseek_v32", "deepseek_v4", "phi3_longrope", "gpt_oss", "gemma3"]
            .map(Case::new)
            .into();
    cases.extend(KvType::ALL.map(|kv| Case { kv: Some(kv), ..Case::new("qwen3") }));
    for name in ["qwen3", "deepseek_v32", "gpt_oss"] {
        cases.push(Case { backend: BackendKind::Plain, ..Case::new(name) });
    }
    for backend in [BackendKind::Cpu, BackendKind::Plain] {
        let mtp = Case { spec: Some("mtp:3".into()), ..Case::new("qwen3_mtp") };
        cases.push(Case { backend: backend.clone(), ..mtp });
        cases.push(Case { backend, spec: Some(eagle("eagle3_qwen3")), ..Case::new("eagle3_qwen3") });
    }
    for case in cases {
        let (loaded, what) = (case.load(), case.what());
        for (temperature, length) in [(0.0, 43), (0.9, 64)] {
            let prompt: Vec<Token> = (0..length).map(|i| 3 + i * i % 61).collect();
            let sampling = Sampling { temperature, seed: 5, ..Sampling::default() };
            let params = Params { max_tokens: 30, ignore_eos: true, sampling, ..Params::default() };
            let request = loaded.request(prompt, params).unwrap();
            let alone = complete(&mut engine(&loaded, CacheKind::Paged, 200), request.clone()).tokens;
            let engines = [(CacheKind::Paged, 150), (CacheKind::Radix, 200)];
            let engines = engines.map(|(kind, slots)| engine(&loaded, kind, slots));
            let (tokens, cached, rows) = transfer(engines, &request);
            assert_eq!(tokens, alone, "{what}");
            assert_eq!(cached, length / BLOCK * BLOCK, "{what}");
            assert!(rows.iter().any(|byte| *byte != 0), "{what}");
        }
    }
}
