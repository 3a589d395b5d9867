//! Sessions of the library on models with window groups: turns, rewinds and forks give the answers
//! of a session with one KV pool. On a shared prefix, sliding-window layers join the full group.

use super::KINDS;
use kvasir::{CacheKind, CacheOptions, Kvasir, Options, Params, PrefixOptions, Sampling, Session, Token};
use kvasir_testkit::paths;

/// Tokens and log-probabilities of an answer.
type Answer = (Vec<Token>, String);

fn options(kind: CacheKind) -> CacheOptions {
    let options = CacheOptions::new(kind).capacity(512);
    if kind.is_block_based() { options.block_size(8) } else { options }
}

fn turn(session: &mut Session, prompt: std::ops::Range<Token>, max_tokens: u32) -> Answer {
    let main = session.main();
    session.append(main, prompt.collect::<Vec<_>>()).unwrap();
    let sampling = Sampling { temperature: 0.8, seed: 3, logprobs: Some(2), ..Sampling::default() };
    let params = Params { max_tokens, ignore_eos: true, sampling, ..Params::default() };
    let answer = session.generate(main, &params).unwrap();
    (answer.ids, format!("{:?}", answer.logprobs))
}

fn load(model: &str) -> Kvasir {
    Kvasir::load(paths::model(model), Options { threads: Some(2), ..Options::default() }).unwrap()
}

#[test]
fn turns_and_rewinds_equal_those_on_one_pool() {
    for model in ["gemma3", "gpt_oss"] {
        let kvasir = load(model);
        for kind in KINDS {
            let mut one_pool = kvasir.session(options(CacheKind::Contiguous)).unwrap();
            let mut windowed = kvasir.session(options(kind)).unwrap();
            assert_eq!(windowed.cache().shape().windows.len(), 1, "{model}, {kind}");
            let mut check_turn = |prompt: std::ops::Range<Token>, back: usize| {
                let [expected, answer] = [&mut one_pool, &mut windowed].map(|session| {
                    let main = session.main();
                    let to = session.len(main).unwrap() - back;
                    session.rewind(main, to).unwrap();
                    turn(session, prompt.clone(), 24)
                });
                assert_eq!(answer, expected, "{model}, {kind}, rewound by {back}");
            };
            check_turn(5..75, 0);
            check_turn(80..90, 0);
            for back in [3, 20, 60] {
                check_turn(70..74, back);
            }
            windowed.cache().check().unwrap();
        }
    }
}

#[test]
fn forks_equal_sessions_of_their_tokens() {
    let kvasir = load("gemma4_ple");
    for kind in KINDS {
        let mut session = kvasir.session(options(kind)).unwrap();
        turn(&mut session, 5..75, 9);
        let main = session.main();
        let branches = session.fork(main, 3).unwrap();
        for (number, branch) in (0..).zip(branches) {
            session.append(branch, vec![100 + number; 5]).unwrap();
            let params = Params { max_tokens: 12, ignore_eos: true, ..Params::default() };
            let answer = session.generate(branch, &params).unwrap();
            assert!(answer.cached > 60, "{kind}: {}", answer.cached);
            let known = session.tokens(branch).unwrap();
            let prompt = known[..known.len() - answer.ids.len()].to_vec();
            let mut alone = kvasir.session(options(CacheKind::Contiguous)).unwrap();
            let main = alone.main();
            alone.append(main, prompt).unwrap();
            assert_eq!(alone.generate(main, &params).unwrap().ids, answer.ids, "{kind}, branch {number}");
        }
    }
}

#[test]
fn sessions_on_a_shared_prefix_join_the_windows() {
    let kvasir = load("gemma3");
    let tokens: Vec<Token> = (5..45).collect();
    let mut alone = kvasir.session(options(CacheKind::Contiguous)).unwrap();
    let main = alone.main();
    alone.append(main, tokens.clone()).unwrap();
    let expected = turn(&mut alone, 50..60, 20);
    let prefix = kvasir.freeze(tokens, PrefixOptions::default()).unwrap();
    for kind in KINDS {
        let mut session = prefix.session(options(kind)).unwrap();
        assert!(session.cache().shape().windows.is_empty(), "{kind}");
        assert_eq!(turn(&mut session, 50..60, 20), expected, "{kind}");
    }
}
