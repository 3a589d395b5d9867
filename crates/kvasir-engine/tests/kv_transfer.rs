//! One engine computes K/V blocks and another decodes: the tokens equal those of a request that
//! runs alone, whichever blocks arrive. On the toy device every output depends on every slot read,
//! so a wrong row changes tokens.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_kv::{CacheConfig, CacheKind, Token, build};
use kvasir_sim::Toy;
use kvasir_testkit::{Random, complete::complete};
use std::sync::{Arc, Mutex};

const BLOCK_BASED: [CacheKind; 2] = [CacheKind::Paged, CacheKind::Radix];

fn engine(random: &mut Random, kind: CacheKind, block_size: u32, slots: u32) -> Engine<Toy> {
    let cache = build(kind, &CacheConfig { block_size, sharing: true, ..CacheConfig::new(slots) }).unwrap();
    let limits =
        Limits { max_num_batched_tokens: random.pick(&[16, 64]), prefix_cache: true, ..Limits::default() };
    let policy: Box<dyn Policy> = match random.below(3) {
        0 => Box::new(PrefillFirst::new(Chunking::On { cap: None }, 0.0)),
        1 => Box::new(Chunked::new(random.between(1, 20), Mixing::On { target: None })),
        _ => Box::new(Chunked::new(random.between(5, 40), Mixing::Off)),
    };
    let engine = Engine::new(Core::new(limits, Order::Fcfs, policy, cache), Toy::new(), || 7);
    let engine = engine.overlap(random.chance(50));
    if random.chance(30) { engine.draft(Box::new(SuffixDrafter::new(4))).unwrap() } else { engine }
}

/// The exports that an engine has sent.
type Exports = Arc<Mutex<Vec<KvExport>>>;

fn export(engine: &mut Engine<Toy>) -> Exports {
    let exports = Exports::default();
    let to = Arc::clone(&exports);
    engine.export_kv(Arc::new(move |export| to.lock().unwrap().push(export))).unwrap();
    exports
}

/// Outputs of a request since the last call; clears the outbox.
fn outputs(engine: &mut Engine<Toy>, tag: u64, imports: &mut ImportCounts) -> Vec<Token> {
    let outbox = engine.core_mut().outbox();
    let own = outbox.iter().filter(|output| output.event.tag == tag);
    let tokens = own.flat_map(|output| output.tokens).copied().collect();
    imports.handled += outbox.imports.handled;
    imports.stored += outbox.imports.stored;
    imports.refused += outbox.imports.refused;
    outbox.clear();
    tokens
}

#[test]
fn requests_continue_whichever_blocks_arrive() {
    let (mut whole, mut stored, mut refused, mut early) = (0, 0, 0, 0);
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let block_size = random.pick(&[1, 4, 16]);
        let kinds = [random.pick(&BLOCK_BASED), random.pick(&BLOCK_BASED)];
        let slots = random.pick(&[96, 160, 600]);
        let mut first = engine(&mut random, kinds[0], block_size, 600);
        let mut second = engine(&mut random, kinds[1], block_size, slots);
        let exports = export(&mut first);
        let mut imports = ImportCounts::default();
        for tag in 1..6 {
            let (cut, len) = (random.between(0, 40), random.between(1, 70));
            let prompt: Vec<Token> = (0..len)
                .map(|i| if i < cut { 100 + i % 7 } else { 100 + random.below(9) as Token })
                .collect();
            let params = Params { max_tokens: 20, ignore_eos: true, ..Params::default() };
            let request = Request { tag, prompt: prompt.clone(), params };
            let n = random.between(1, 3);
            let handed = Params { hand_off: Some(0), ..request.params.clone() };
            let ids =
                first.core_mut().add_siblings(Request { params: handed, ..request.clone() }, n, 1).unwrap();
            // Another request keeps steps of the second engine in flight.
            let other = Request { tag: 100 + tag, prompt: vec![tag as Token; 9], ..request.clone() };
            second.add_request(other).unwrap();
            let (mut before, mut last, mut is_whole) = (Vec::new(), 0, true);
            while last < n {
                first.step().unwrap();
                before.extend(outputs(&mut first, tag, &mut ImportCounts::default()));
                for export in exports.lock().unwrap().drain(..) {
                    let KvExport { tag: of, start, tokens, rows, is_last } = export;
                    assert!((tag..tag + u64::from(n)).contains(&of));
                    last += u32::from(is_last);
                    assert!(of == tag || tokens == 0, "a sibling's blocks are exported twice");
                    early += u32::from(!is_last);
                    if tokens == 0 {
                        continue;
                    }
                    let mut import = KvImport {
                        salt: 0,
                        tokens: prompt[..(start + tokens) as usize].to_vec(),
                        start,
                        rows,
                    };
                    match random.below(20) {
                        0 => is_whole = false,
                        1 => {
                            import.rows.pop();
                            (is_whole, refused) = (false, refused + tokens);
                            second.import_kv(import);
                        }
                        _ => second.import_kv(import),
                    }
                    if random.chance(50) {
                        second.step().unwrap();
                    }
                    drop(outputs(&mut second, 0, &mut imports));
                }
            }
            while before.is_empty() {
                first.step().unwrap();
                before.extend(outputs(&mut first, tag, &mut ImportCounts::default()));
            }
            for id in ids {
                first.core_mut().abort(id, 1);
            }
            first.core_mut().outbox().clear();
            let expected = Toy::alone(&prompt, 20, true);
            assert!(expected.starts_with(&before), "seed {seed}");
            if before.len() == expected.len() {
                continue;
            }
            let resumption = Resumption { outputs: before.clone(), ..Resumption::default() };
            let params = Params { resumption: Some(resumption.into()), ..request.params.clone() };
            let answer = complete(&mut second, Request { params, ..request });
            assert_eq!([before, answer.tokens].concat(), expected, "seed {seed}");
            if is_whole && imports.refused == 0 && slots == 600 {
                // What was decoded of other siblings may be cached, too.
                assert!(answer.summary.cached >= len / block_size * block_size, "seed {seed}");
                whole += 1;
            }
        }
        stored += imports.stored;
        refused += imports.refused;
        for engine in [&first, &second] {
            assert_eq!(engine.executor().violations().first(), None, "seed {seed}");
            assert_eq!(engine.core().check_invariants(), Ok(()), "seed {seed}");
            assert_eq!(engine.core().cache().check(), Ok(()), "seed {seed}");
        }
    }
    assert!(
        whole > 300 && stored > 10_000 && refused > 500 && early > 1000,
        "{whole} {stored} {refused} {early}"
    );
}

/// Imports of part of a block, without the blocks before them, or into a pool in use are refused
/// and change nothing.
#[test]
fn imports_that_do_not_fit_are_refused() {
    let mut random = Random::new(3);
    for kind in BLOCK_BASED {
        let mut engine = engine(&mut random, kind, 4, 16);
        let bytes = engine.kv_layout().unwrap().slot_bytes;
        let import = |engine: &mut Engine<Toy>, start: u32, tokens: u32, rows: u32| {
            let tokens = (0..tokens).collect();
            engine.import_kv(KvImport { salt: 0, tokens, start, rows: vec![0; rows as usize * bytes] });
            std::mem::take(&mut engine.core_mut().outbox().imports)
        };
        let counts = |stored, refused| ImportCounts { handled: 1, stored, refused };
        assert_eq!(import(&mut engine, 4, 8, 4), counts(0, 4), "no parent");
        assert_eq!(import(&mut engine, 0, 6, 6), counts(0, 6), "part of a block");
        assert_eq!(import(&mut engine, 1, 5, 4), counts(0, 4), "not at a block");
        assert_eq!(import(&mut engine, 0, 8, 7), counts(0, 8), "too few rows");
        assert_eq!(import(&mut engine, 8, 4, 0), counts(0, 0), "ends before it starts");
        assert_eq!(import(&mut engine, 0, 20, 20), counts(0, 20), "larger than the pool");
        assert_eq!(engine.core().cache().usage().free, 16);
        assert_eq!(import(&mut engine, 0, 8, 8), counts(8, 0));
        assert_eq!(import(&mut engine, 0, 8, 8), counts(0, 0), "is cached");
        assert_eq!(import(&mut engine, 4, 12, 8), counts(4, 0), "is cached in part");
        let usage = engine.core().cache().usage();
        assert_eq!((usage.free, usage.evictable), (4, 12));
        let params = Params { max_tokens: 4, ignore_eos: true, ..Params::default() };
        engine.add_request(Request { tag: 1, prompt: vec![100; 12], params }).unwrap();
        while engine.core().cache().usage().held < 16 {
            engine.step().unwrap();
        }
        assert_eq!(import(&mut engine, 0, 8, 8), counts(0, 8), "all slots are in use");
    }
}

#[test]
fn engines_without_a_prefix_cache_transfer_nothing() {
    let mut random = Random::new(1);
    for kind in [CacheKind::Contiguous, CacheKind::Tree, CacheKind::Cells] {
        let refused = engine(&mut random, kind, 1, 64).export_kv(Arc::new(|_| {}));
        assert!(matches!(refused, Err(KvTransferError::Cache(_))), "{refused:?}");
    }
}
