//! The library API: sessions, shared prefixes, streams and errors, over one copy of the weights.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir::{
    BackendKind, Branch, CacheKind, CacheOptions, EngineConfig, Error, Finish, KvType, Kvasir, Options,
    Params, PrefixOptions, Sampling, Session, SharedPrefix, Token,
};
use std::{fs, path::PathBuf, thread};

fn root() -> PathBuf {
    kvasir_testkit::paths::repository()
}

/// The tiny Qwen3, without a tokenizer.
fn tiny() -> Kvasir {
    Kvasir::load(root().join("testdata/models/qwen3"), Options { threads: Some(2), ..Options::default() })
        .unwrap()
}

/// The tiny Qwen3 with a tokenizer.
fn with_words(name: &str) -> Kvasir {
    let folder = std::env::temp_dir().join(format!("kvasir-library-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for from in ["testdata/models/qwen3", "crates/kvasir-formats/tests/data/tokenizers/qwen"] {
        for file in fs::read_dir(root().join(from)).unwrap().map(Result::unwrap) {
            fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
    }
    let loaded = Kvasir::load(&folder, Options::default()).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    loaded
}

fn params(max_tokens: u32) -> Params {
    let sampling = Sampling { temperature: 0.8, seed: 3, logprobs: Some(2), ..Sampling::default() };
    Params { max_tokens, ignore_eos: true, sampling, ..Params::default() }
}

/// The message of an error of the caller.
fn refused<T>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Failed(why)) => format!("another kind of error: {why}"),
        Err(error) => error.to_string(),
        Ok(_) => "no error".into(),
    }
}

/// Token ids with the bits of their log-probabilities.
type Bits = Vec<(Token, u32)>;

/// A multi-turn conversation, with forks where the cache supports them.
fn converse(mut session: Session) -> Vec<Bits> {
    let mut answered: Vec<Bits> = Vec::new();
    let mut generate = |session: &mut Session, branches: &[Branch]| {
        let answers = session.generate_all(branches, &params(9)).unwrap();
        answered.extend(answers.iter().map(|answer| {
            assert_eq!(answer.ids.len(), answer.logprobs.len());
            answer.ids.iter().zip(&answer.logprobs).map(|(id, l)| (*id, l.chosen.to_bits())).collect::<Bits>()
        }));
    };
    let main = session.main();
    session.append(main, (5..45).collect::<Vec<Token>>()).unwrap();
    generate(&mut session, &[main]);
    session.append(main, [7, 8]).unwrap();
    generate(&mut session, &[main]);
    session.rewind(main, 30).unwrap();
    generate(&mut session, &[main]);
    if let Ok(forks) = session.fork(main, 3) {
        session.append(forks[1], [9]).unwrap();
        generate(&mut session, &forks);
        session.keep(forks[2]).unwrap();
        generate(&mut session, &[forks[2]]);
    }
    answered
}

fn kinds() -> [CacheOptions; 4] {
    [
        CacheOptions::new(CacheKind::Contiguous).kv(KvType::F16).capacity(256),
        CacheOptions::new(CacheKind::Cells).kv(KvType::Q8_0).capacity(512),
        CacheOptions::new(CacheKind::Tree).kv(KvType::Bf16).capacity(256),
        CacheOptions::new(CacheKind::Paged).kv(KvType::F32).capacity(512),
    ]
}

#[test]
fn sessions_of_every_kind_run_as_if_alone() {
    let kvasir = tiny();
    let alone: Vec<_> = kinds().map(|options| converse(tiny().session(options).unwrap())).into();
    let sessions = kinds().map(|options| kvasir.session(options).unwrap());
    let threads = sessions.map(|session| thread::spawn(move || converse(session)));
    let together: Vec<_> = threads.map(|thread| thread.join().unwrap()).into();
    assert_eq!(alone, together);
    assert_ne!(alone[0], alone[1], "how K and V are stored shows");
}

/// A frozen prefix of 45 tokens, as one part or two.
fn frozen(kvasir: &Kvasir, kv: KvType, in_parts: bool) -> SharedPrefix {
    let options = PrefixOptions { kv: Some(kv), longest: None };
    let tokens: Vec<Token> = (5..50).collect();
    if in_parts {
        kvasir.freeze(&tokens[..30], options).unwrap().extend(&tokens[30..]).unwrap()
    } else {
        kvasir.freeze(tokens, options).unwrap()
    }
}

/// Answers of a session behind a prefix, or with the same tokens appended.
fn say_behind(mut session: Session, in_front: &[Token]) -> Vec<Bits> {
    let mut answered = Vec::new();
    let mut generate = |session: &mut Session, branches: &[Branch]| {
        for answer in session.generate_all(branches, &params(7)).unwrap() {
            answered.push(
                answer.ids.into_iter().zip(answer.logprobs.iter().map(|l| l.chosen.to_bits())).collect(),
            );
        }
    };
    let main = session.main();
    session.append(main, in_front).unwrap();
    assert_eq!(session.len(main).unwrap(), 45);
    session.append(main, [200, 201, 202]).unwrap();
    generate(&mut session, &[main]);
    session.rewind(main, 46).unwrap();
    session.append(main, [203]).unwrap();
    generate(&mut session, &[main]);
    if let Ok(forks) = session.fork(main, 2) {
        session.append(forks[1], [9]).unwrap();
        generate(&mut session, &forks);
        session.rewind(forks[0], 45).unwrap();
        session.append(forks[0], [210, 211]).unwrap();
        generate(&mut session, &[forks[0]]);
    }
    answered
}

#[test]
fn sessions_on_a_shared_prefix_answer_as_without_it() {
    let kvasir = tiny();
    for (kv, in_parts) in [(KvType::F32, false), (KvType::Q8_0, true)] {
        let prefix = frozen(&kvasir, kv, in_parts);
        let options = |kind| CacheOptions::new(kind).capacity(96);
        // All concurrently on threads of their own; the prefix handle may be dropped first.
        let sessions: Vec<_> =
            CacheKind::ALL.iter().map(|kind| (*kind, prefix.session(options(*kind)).unwrap())).collect();
        let tokens = prefix.tokens().to_vec();
        drop(prefix);
        let threads = sessions.into_iter().map(|(kind, session)| {
            assert!(
                session.cached(session.main()).unwrap() >= 32 && session.cache().usage().held == 0,
                "{kind}"
            );
            (kind, thread::spawn(move || say_behind(session, &[])))
        });
        for (kind, thread) in threads.collect::<Vec<_>>() {
            let alone = kvasir.session(options(kind).kv(kv).capacity(512)).unwrap();
            assert_eq!(thread.join().unwrap(), say_behind(alone, &tokens), "{kind}, {kv}");
        }
    }
}

#[test]
fn the_plain_backend_shares_prefixes_too() {
    let options = Options { backend: BackendKind::Plain, ..Options::default() };
    let kvasir = Kvasir::load(root().join("testdata/models/qwen3"), options).unwrap();
    let prefix = frozen(&kvasir, KvType::F32, true);
    let behind = prefix.session(CacheOptions::new(CacheKind::Cells).capacity(64)).unwrap();
    let alone = kvasir.session(CacheOptions::new(CacheKind::Cells).capacity(128)).unwrap();
    assert_eq!(say_behind(behind, &[]), say_behind(alone, prefix.tokens()));
}

#[test]
fn a_small_cache_suffices_behind_a_long_prefix() {
    let kvasir = tiny();
    let prefix = frozen(&kvasir, KvType::F32, false);
    // 16 slots, two blocks of 8: three conversations of 45 + 8 tokens take turns.
    let options = CacheOptions::new(CacheKind::Radix).block_size(8).capacity(16);
    let mut session = prefix.session(options).unwrap();
    let main = session.main();
    let branches = session.fork(main, 3).unwrap();
    for (n, branch) in (300..).zip(&branches) {
        session.append(*branch, [n]).unwrap();
    }
    let answers = session.generate_all(&branches, &params(7)).unwrap();
    assert!(answers.iter().all(|answer| answer.reason == Finish::MaxTokens && answer.cached >= 40));
    let asked_more = session.generate(branches[0], &params(40)).unwrap();
    assert_eq!(asked_more.reason, Finish::Capacity);
}

#[test]
fn unsupported_shared_prefix_options_are_refused_by_name() {
    let kvasir = tiny();
    let prefix = frozen(&kvasir, KvType::Q8_0, false);
    let other = CacheOptions::new(CacheKind::Cells).kv(KvType::F16).capacity(64);
    let why = refused(prefix.session(other).map(|_| ()));
    assert!(why.contains("q8_0") && why.contains("f16"), "{why}");
    let mut session = prefix.session(CacheOptions::new(CacheKind::Cells).capacity(64)).unwrap();
    let main = session.main();
    assert!(refused(session.rewind(main, 44)).contains("the shared prefix has 45 tokens"));
    assert!(refused(session.generate(main, &params(4))).contains("shared prefix of"));
    session.append(main, [9]).unwrap();
    let scored = Sampling { prompt_logprobs: Some(1), ..Sampling::default() };
    let scored = Params { sampling: scored, ..params(4) };
    assert!(refused(session.generate(main, &scored)).contains("prompt_logprobs"));
    assert!(session.generate(main, &params(4)).is_ok(), "nothing was changed");
    let short = PrefixOptions { longest: Some(3), ..PrefixOptions::default() };
    assert!(refused(kvasir.freeze([1, 2, 3, 4], short).map(|_| ())).contains("longest: `3`"));
    assert!(refused(kvasir.freeze(Vec::new(), short).map(|_| ())).contains("empty"));
    assert!(refused(prefix.extend([9999]).map(|_| ())).contains("vocabulary"));
}

#[test]
fn prefixes_are_not_shared_across_rope_angles() {
    let kvasir = Kvasir::load(root().join("testdata/models/phi3_longrope"), Options::default()).unwrap();
    let first = kvasir.model().loaded.program().clone();
    let turns = (1..400).find(|n| first.prefix_salt(*n) != first.prefix_salt(1)).unwrap();
    let tokens: Vec<Token> = (5..15).collect();
    let say = |longest: Option<u32>, answer: u32| {
        let options = PrefixOptions { longest, ..PrefixOptions::default() };
        let prefix = kvasir.freeze(&tokens[..], options).unwrap();
        let mut session = prefix.session(CacheOptions::new(CacheKind::Contiguous).capacity(400)).unwrap();
        let main = session.main();
        session.append(main, [3]).unwrap();
        session.generate(main, &params(answer)).map(|answer| answer.ids)
    };
    let alone = |answer: u32| {
        let mut session = kvasir.session(CacheOptions::new(CacheKind::Contiguous).capacity(400)).unwrap();
        let main = session.main();
        session.append(main, [&tokens[..], &[3]].concat()).unwrap();
        session.generate(main, &params(answer)).unwrap().ids
    };
    let long = turns + 5;
    assert_eq!(say(None, 4).unwrap(), alone(4));
    assert!(refused(say(None, long)).contains("PrefixOptions::longest"));
    assert_eq!(say(Some(turns), long).unwrap(), alone(long));
}

#[test]
fn bookkeeping_does_not_show() {
    let kvasir = tiny();
    let say = |kind| {
        let mut session = kvasir.session(CacheOptions::new(kind).kv(KvType::F32).capacity(256)).unwrap();
        let main = session.main();
        session.append(main, (5..38).collect::<Vec<Token>>()).unwrap();
        let first = session.generate(main, &params(8)).unwrap();
        session.append(main, [9]).unwrap();
        let second = session.generate(main, &params(8)).unwrap();
        assert!(second.cached >= 32, "{kind}: {}", second.cached);
        (first.ids, second.ids, second.logprobs)
    };
    let all = [CacheKind::Contiguous, CacheKind::Cells, CacheKind::Tree, CacheKind::Paged, CacheKind::Radix];
    let answered: Vec<_> = all.map(say).into();
    assert!(answered.windows(2).all(|pair| pair[0] == pair[1]));
    // A session gives the same answer as a request without one.
    let mut prompt: Vec<Token> = (5..38).collect();
    prompt.extend(&answered[0].0);
    prompt.push(9);
    let cache = CacheOptions::default().kv(KvType::F32);
    let options = Options { cache, threads: Some(2), ..Options::default() };
    let mut without = Kvasir::load(root().join("testdata/models/qwen3"), options).unwrap();
    assert_eq!(without.generate(prompt, &params(8)).unwrap().ids, answered[0].1);
}

#[test]
fn branches_share_their_trunk() {
    let kvasir = tiny();
    let mut session = kvasir.session(CacheOptions::new(CacheKind::Cells).capacity(120)).unwrap();
    let main = session.main();
    session.append(main, (5..69).collect::<Vec<Token>>()).unwrap();
    let branches = session.fork(main, 4).unwrap();
    assert_eq!((session.cached(main).unwrap(), session.cache().usage().held), (64, 64), "held once");
    for (n, branch) in (10..).zip(&branches) {
        assert_eq!(session.cached(*branch).unwrap(), 64);
        session.append(*branch, [n]).unwrap();
    }
    let answers = session.generate_all(&branches, &params(8)).unwrap();
    assert!(answers.iter().all(|answer| answer.cached == 64 && answer.reason == Finish::MaxTokens));
    // A long request evicts the others from the cache; their tokens, and so their answers, remain.
    let other = session.fork(main, 1).unwrap()[0];
    session.rewind(other, 0).unwrap();
    session.append(other, (1..101).collect::<Vec<Token>>()).unwrap();
    session.generate(other, &params(2)).unwrap();
    assert_eq!(session.cached(branches[0]).unwrap(), 0);
    assert_eq!(session.len(branches[0]).unwrap(), 64 + 1 + 8);
    session.rewind(branches[0], 65).unwrap();
    assert_eq!(session.generate(branches[0], &params(8)).unwrap().ids, answers[0].ids);
}

#[test]
fn dropping_a_stream_cancels_only_its_request() {
    let mut kvasir = tiny();
    let whole = kvasir.generate([5, 6, 7], &params(12)).unwrap();
    let other = kvasir.add_request([8, 9], &params(4)).unwrap();
    let mut stream = kvasir.stream([5, 6, 7], &params(12)).unwrap();
    let mut ids = Vec::new();
    for piece in stream.by_ref() {
        ids.extend(piece.unwrap().ids);
    }
    assert_eq!((&ids, &stream.answer().unwrap().ids), (&whole.ids, &whole.ids));
    drop(stream);
    let begun: Vec<_> = kvasir.stream([5, 6, 7], &params(100)).unwrap().take(2).map(Result::unwrap).collect();
    assert!(begun.iter().all(|piece| piece.answer.is_none()));
    let mut heard = Vec::new();
    while !kvasir.is_idle() {
        heard.extend(kvasir.step().unwrap());
    }
    assert!(heard.iter().all(|piece| piece.request == other), "of the canceled one nothing is heard");
    assert_eq!(heard.iter().find_map(|piece| piece.answer.clone()).unwrap().ids.len(), 4);
    let gone = kvasir.add_request([8, 9], &params(4)).unwrap();
    kvasir.cancel(gone);
    assert!(kvasir.is_idle());
}

#[test]
fn a_session_keeps_tokens_of_a_dropped_stream() {
    let mut session = tiny().session(CacheOptions::new(CacheKind::Contiguous).capacity(128)).unwrap();
    let main = session.main();
    session.append(main, [5, 6, 7]).unwrap();
    let answered: Vec<Token> =
        session.stream(main, &params(50)).unwrap().take(3).flat_map(|piece| piece.unwrap().ids).collect();
    assert_eq!(session.tokens(main).unwrap(), [vec![5, 6, 7], answered].concat());
    let greedy = Params { max_tokens: 4, ..Params::default() };
    assert!(!session.generate(main, &greedy).unwrap().ids.is_empty());
}

#[test]
fn texts_go_in_and_come_out() {
    let mut kvasir = with_words("texts");
    let params = Params { max_tokens: 8, ignore_eos: true, ..Params::default() };
    let answer = kvasir.generate("hello there", &params).unwrap();
    let text = answer.text.clone().unwrap();
    assert_eq!(kvasir.model().text(&answer.ids).unwrap(), text);
    let streamed: String =
        kvasir.stream("hello there", &params).unwrap().map(|piece| piece.unwrap().text).collect();
    assert_eq!(streamed, text);
    let many = kvasir.generate_many(["hello there", "who?"].map(|p| (p, params.clone()))).unwrap();
    assert_eq!((many[0].ids.clone(), many.len()), (answer.ids, 2));
    assert!(many[0].ttft.is_some() && many[0].tpot.is_some());
}

#[test]
fn invalid_session_calls_are_refused_and_change_nothing() {
    let mut kvasir = tiny();
    assert!(refused(kvasir.generate("a text", &params(4))).contains("no tokenizer"));
    assert!(refused(kvasir.generate(Vec::new(), &params(4))).contains("empty"));
    assert!(
        refused(kvasir.generate_many([(vec![1], params(4)), (vec![9999], params(4))]))
            .starts_with("prompt 1:")
    );
    assert!(kvasir.is_idle(), "the good prompt is not run either");
    let hot = Params { sampling: Sampling { temperature: -1.0, ..Sampling::default() }, ..params(4) };
    assert!(refused(kvasir.generate([1], &hot)).contains("temperature"));
    assert!(
        refused(kvasir.session(CacheOptions::default().capacity(3)).map(|_| ())).contains("kv_capacity 3")
    );
    let none = EngineConfig { max_num_seqs: Some(0), ..EngineConfig::default() };
    assert!(refused(kvasir.session(none.into()).map(|_| ())).contains("max_num_seqs 0"));
    let mut session = kvasir.session(CacheOptions::new(CacheKind::Tree).capacity(64)).unwrap();
    let main = session.main();
    assert!(refused(session.fork(main, 2)).contains("no sequences capability"));
    session.append(main, [1, 2, 3]).unwrap();
    assert!(refused(session.rewind(main, 4)).contains("3 tokens"));
    assert!(refused(session.append(main, [9999])).contains("9999"));
    assert!(refused(session.generate_all(&[main, main], &params(1))).contains("twice"));
    assert_eq!(session.tokens(main).unwrap(), [1, 2, 3]);
    session.close(main).unwrap();
    assert!(refused(session.generate(main, &params(1))).contains("no branch 0"));
}

/// Layers with a window of 16 keep 16 + 5 rows; the conversation is many times longer.
#[test]
fn ring_buffers_change_only_what_is_recomputed() {
    let options = Options { threads: Some(2), ..Options::default() };
    let kvasir = Kvasir::load(root().join("testdata/models/gemma3"), options).unwrap();
    let contiguous = CacheOptions::new(CacheKind::Contiguous).capacity(256);
    let [mut whole, mut ringed] =
        [contiguous.clone(), contiguous.clone().rings(6)].map(|options| kvasir.session(options).unwrap());
    let main = whole.main();
    let turn = |session: &mut Session, prompt: Vec<Token>| {
        session.append(main, prompt).unwrap();
        session.generate(main, &params(24)).unwrap()
    };
    let both = |[whole, ringed]: [&mut Session; 2], prompt: std::ops::Range<Token>| {
        let [a, b] = [whole, ringed].map(|session| turn(session, prompt.clone().collect()));
        assert_eq!((a.ids, a.logprobs), (b.ids, b.logprobs));
        [a.cached, b.cached]
    };
    assert_eq!(both([&mut whole, &mut ringed], 5..45), [0, 0]);
    let [kept, in_rings] = both([&mut whole, &mut ringed], 50..60);
    assert!(kept == in_rings && kept > 60, "{kept} and {in_rings}");
    // A short rewind stays within the ring; a longer one recomputes.
    for (back, is_kept) in [(3, true), (60, false)] {
        let to = whole.len(main).unwrap() - back;
        whole.rewind(main, to).unwrap();
        ringed.rewind(main, to).unwrap();
        let [kept, in_rings] = both([&mut whole, &mut ringed], 70..74);
        assert_eq!((kept > 0, in_rings > 0), (true, is_kept), "{back} back: {kept} and {in_rings}");
    }
    let why = |kvasir: &Kvasir, options: CacheOptions| refused(kvasir.session(options).map(|_| ()));
    let radix = CacheOptions::default().rings(6);
    assert!(why(&kvasir, radix).contains("rings on cannot be combined with cache radix"));
    assert!(why(&kvasir, contiguous.clone().rings(0)).contains("max_num_batched_tokens 0"));
    assert!(why(&tiny(), contiguous.rings(6)).contains("no layer of the model has a window"));
}

/// Log-probabilities after a cut, with what was cached then.
fn after_a_cut(kvasir: &Kvasir, kind: CacheKind, prefix: bool) -> (Vec<u32>, Vec<Bits>) {
    let options = CacheOptions::new(kind).kv(KvType::F32).capacity(512);
    let options = if kind.is_block_based() { options.block_size(8) } else { options };
    let shared = prefix.then(|| {
        let options = PrefixOptions { kv: Some(KvType::F32), longest: None };
        kvasir.freeze((0..16).map(|i| 5 + i * 7 % 90).collect::<Vec<Token>>(), options).unwrap()
    });
    let mut session = match &shared {
        Some(prefix) => prefix.session(options).unwrap(),
        None => kvasir.session(options).unwrap(),
    };
    let main = session.main();
    let from = session.len(main).unwrap() as u32;
    session.append(main, (from..64).map(|i| 5 + i * 7 % 90).collect::<Vec<Token>>()).unwrap();
    session.fill(main).unwrap();
    assert!(refused(session.cut(main, 40..65)).contains("to 64 tokens can be cut"));
    session.cut(main, 20..44).unwrap();
    let mut cached = vec![session.cached(main).unwrap()];
    let fork = session.fork(main, 1).unwrap()[0];
    session.append(main, [7, 8, 9]).unwrap();
    session.append(fork, [10]).unwrap();
    let answers = session.generate_all(&[main, fork], &params(13)).unwrap();
    cached.extend(answers.iter().map(|answer| answer.cached));
    let bits = |answer: &kvasir::Answer| {
        answer.ids.iter().zip(&answer.logprobs).map(|(id, one)| (*id, one.chosen.to_bits())).collect()
    };
    (cached, answers.iter().map(bits).collect())
}

#[test]
fn what_follows_a_cut_is_the_same_in_every_cache_that_can_cut() {
    let load = |backend| {
        let path = root().join("testdata/models/qwen3");
        let options =
            Options { backend, precision: kvasir::Precision::F32, threads: Some(2), ..Options::default() };
        Kvasir::load(path, options).unwrap()
    };
    let cpu = load(BackendKind::Cpu);
    let (cached, wanted) = after_a_cut(&cpu, CacheKind::Cells, false);
    assert_eq!(cached, [40, 40, 40], "64 tokens without 24");
    for kind in [CacheKind::Paged, CacheKind::Radix] {
        assert_eq!(after_a_cut(&cpu, kind, false), (cached.clone(), wanted.clone()), "{kind}");
    }
    let (of_prefix, behind) = after_a_cut(&cpu, CacheKind::Cells, true);
    assert_eq!(of_prefix, [40, 40, 40]);
    assert_eq!(after_a_cut(&cpu, CacheKind::Paged, true), (of_prefix, behind));
    let ids = |answers: &[Bits]| answers.iter().flatten().map(|(id, _)| *id).collect::<Vec<_>>();
    let plain = after_a_cut(&load(BackendKind::Plain), CacheKind::Radix, false);
    assert_eq!((plain.0, ids(&plain.1)), (cached, ids(&wanted)));
    // The K/V behind the cut has seen what was cut, so a computation of what is left differs.
    let left: Vec<Token> = (0..20).chain(44..64).map(|i| 5 + i * 7 % 90).chain([7, 8, 9]).collect();
    let mut alone = cpu.session(CacheOptions::new(CacheKind::Cells).kv(KvType::F32).capacity(512)).unwrap();
    alone.append(alone.main(), left).unwrap();
    let computed = alone.generate(alone.main(), &params(13)).unwrap();
    let first = |answer: &[Bits]| answer[0][0].1;
    assert_ne!(computed.logprobs[0].chosen.to_bits(), first(&wanted));
}
