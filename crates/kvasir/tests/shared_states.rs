//! Shared prefixes of models with recurrent layers: answers of sessions that start from frozen
//! states are bit-identical to those of sessions that compute the prefix themselves.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir::{
    BackendKind, Branch, CacheKind, CacheOptions, Error, KvType, Kvasir, Options, Params, PrefixOptions,
    Sampling, Session, SharedPrefix, Token,
};

/// Models with each kind of recurrent op: gated delta rule, Mamba-2, short convolution.
const MODELS: [&str; 3] = ["qwen3_5", "granitemoehybrid", "lfm2"];

fn load(model: &str, backend: BackendKind) -> Kvasir {
    let path = kvasir_testkit::paths::repository().join("testdata/models").join(model);
    Kvasir::load(path, Options { backend, threads: Some(2), ..Options::default() }).unwrap()
}

fn tokens(count: u32) -> Vec<Token> {
    (0..count).map(|i| 5 + i * 7 % 90).collect()
}

/// A prefix of these tokens, computed at once or in parts that end at `ends`.
fn freeze(kvasir: &Kvasir, tokens: &[Token], ends: &[usize]) -> SharedPrefix {
    let options = PrefixOptions { kv: Some(KvType::F32), longest: None };
    let first = ends.first().copied().unwrap_or(tokens.len());
    let mut prefix = kvasir.freeze(&tokens[..first], options).unwrap();
    for part in ends.windows(2) {
        prefix = prefix.extend(&tokens[part[0]..part[1]]).unwrap();
    }
    prefix
}

fn options(kind: CacheKind, block: u32) -> CacheOptions {
    let options = CacheOptions::new(kind).kv(KvType::F32).capacity(512);
    if kind.is_block_based() { options.block_size(block) } else { options }
}

/// Appends `prompt`, then generates on branches that diverge before and after generated tokens.
/// Returns token ids and bits of log-probabilities.
fn converse(mut session: Session, prompt: &[Token]) -> Vec<(Token, u32)> {
    let sampling = Sampling { temperature: 0.8, seed: 3, logprobs: Some(2), ..Sampling::default() };
    let params = Params { max_tokens: 7, ignore_eos: true, sampling, ..Params::default() };
    let mut bits = Vec::new();
    let mut generate = |session: &mut Session, branches: &[Branch]| {
        for answer in session.generate_all(branches, &params).unwrap() {
            bits.extend(answer.ids.iter().zip(&answer.logprobs).map(|(id, l)| (*id, l.chosen.to_bits())));
        }
    };
    let main = session.main();
    session.append(main, prompt).unwrap();
    let context_len = session.len(main).unwrap();
    session.append(main, [60, 61, 62]).unwrap();
    generate(&mut session, &[main]);
    session.rewind(main, context_len + 1).unwrap();
    session.append(main, [63]).unwrap();
    generate(&mut session, &[main]);
    if let Ok(forks) = session.fork(main, 2) {
        session.append(forks[1], [9]).unwrap();
        generate(&mut session, &forks);
        session.rewind(forks[0], context_len).unwrap();
        session.append(forks[0], [70, 71]).unwrap();
        generate(&mut session, &[forks[0]]);
    }
    bits
}

fn compare(kvasir: &Kvasir, tokens: &[Token], ends: &[usize], kinds: &[CacheKind]) {
    let prefix = freeze(kvasir, tokens, ends);
    assert_eq!(prefix.tokens(), tokens);
    for kind in kinds {
        let block = if tokens.len() > 256 { 32 } else { 16 };
        let on_prefix = prefix.session(options(*kind, block)).unwrap();
        let (base, len) = (on_prefix.cache().shape().base as usize, tokens.len());
        // States are frozen at the end, at the last multiple of 16 and at that of 256.
        let expected = match block {
            _ if !kind.is_block_based() => len,
            16 => len / 16 * 16,
            _ => 256,
        };
        let cached = on_prefix.cached(on_prefix.main()).unwrap() as usize;
        assert_eq!((base, cached), (expected, expected), "{kind}");
        let without_prefix = kvasir.session(options(*kind, block)).unwrap();
        assert_eq!(converse(on_prefix, &[]), converse(without_prefix, tokens), "{kind}");
    }
}

#[test]
fn sessions_on_a_prefix_with_states_equal_those_without_it() {
    for model in MODELS {
        let kvasir = load(model, BackendKind::Cpu);
        compare(&kvasir, &tokens(45), &[], CacheKind::ALL);
        compare(&kvasir, &tokens(45), &[30, 37, 45], &[CacheKind::Radix, CacheKind::Contiguous]);
        // The last multiple of 16 is 304, which is not a multiple of 32.
        compare(&kvasir, &tokens(310), &[], &[CacheKind::Paged]);
    }
}

#[test]
fn the_plain_backend_shares_states() {
    for model in MODELS {
        let kvasir = load(model, BackendKind::Plain);
        compare(&kvasir, &tokens(45), &[33, 45], &[CacheKind::Cells, CacheKind::Paged]);
    }
}

#[test]
fn concurrent_sessions_outlive_the_prefix() {
    let kvasir = load("qwen3_5", BackendKind::Cpu);
    let tokens = tokens(45);
    let prefix = freeze(&kvasir, &tokens, &[20, 45]);
    let session = || prefix.session(options(CacheKind::Cells, 16)).unwrap();
    let sessions = [session(), session(), session()];
    drop(prefix);
    let threads = sessions.map(|session| std::thread::spawn(move || converse(session, &[])));
    let expected = converse(kvasir.session(options(CacheKind::Cells, 16)).unwrap(), &tokens);
    for thread in threads {
        assert_eq!(thread.join().unwrap(), expected);
    }
}

#[test]
fn a_block_size_without_a_frozen_state_is_refused() {
    let kvasir = load("qwen3_5", BackendKind::Cpu);
    let prefix = freeze(&kvasir, &tokens(45), &[]);
    let refused = prefix.session(options(CacheKind::Paged, 12)).map(|_| ());
    let Err(error @ Error::InvalidArgument { .. }) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("no recurrent state at a multiple of the block size"), "{error}");
}
