//! Tests of the pool with real processes. Each process is this test binary, which then runs
//! `process_main` only.

use super::*;
use crate::tokenizers::frame;
use crate::tokenizers::job::Outcome;
use crate::tokenizers::process::{TokenizerProcessConfig, run_tokenizer};
use kvasir_chat::{ChatModel, DetokenizerState, RemoteTokenizer, RemoteTokenizerError, VocabularyFacts};
use kvasir_formats::TextFiles;
use kvasir_testkit::{Random, paths::tokenizer};
use std::{
    env,
    io::{Read, Write},
    os::fd::AsFd,
    sync::atomic::AtomicBool,
};

/// Number of ways in which a process breaks the protocol.
const FAULTS: u32 = 8;

fn chat() -> ChatModel {
    let folder = tokenizer("qwen");
    let files = TextFiles::open(&folder).unwrap();
    let facts = VocabularyFacts { size: 512, eos: vec![505], has_logits: true };
    ChatModel::new(&files, Arc::new(files.tokenizer().unwrap()), facts).unwrap()
}

fn identity() -> Identity {
    Identity { version: "1".into(), model: 2, options: 3 }
}

/// Number of generations of each of the two processes that break the protocol. A job may lose all
/// of these processes, so there must be fewer than `MAX_LOSSES`.
const FAULTY_GENERATIONS: u32 = 2;

/// Starts two processes. With `first_fault`, each process of the first generations breaks the
/// protocol in a different way; faults are numbered from `first_fault`.
fn start(identity: Identity, first_fault: Option<u32>) -> Result<TokenizerPool, TokenizerError> {
    TokenizerPool::start(TokenizerConfig {
        processes: 2,
        program: env::current_exe().unwrap(),
        arguments: Box::new(move |TokenizerStart { tokenizer, generation }| {
            let fault = first_fault.map(|first| first + 2 * generation + tokenizer);
            let fault = fault.filter(|_| generation < FAULTY_GENERATIONS).unwrap_or(FAULTS);
            let own = format!("tokenizer:{tokenizer}:{generation}:{fault}");
            let arguments = ["--exact", "--nocapture", "tokenizers::pool::tests::process_main", &own];
            arguments.map(OsString::from).into()
        }),
        identity,
        on_log: Box::new(|_, _| {}),
    })
}

/// Runs a tokenizer process if this binary was started as one; otherwise does nothing.
#[test]
fn process_main() {
    let arguments = env::args().next_back().unwrap_or_default();
    let Some(arguments) = arguments.strip_prefix("tokenizer:") else { return };
    let numbers: Vec<u32> = arguments.split(':').map(|number| number.parse().unwrap()).collect();
    let &[tokenizer, generation, fault] = &numbers[..] else { return };
    if fault < FAULTS {
        return break_protocol(tokenizer, generation, fault);
    }
    let config = TokenizerProcessConfig { tokenizer, generation, identity: identity(), chat: chat() };
    run_tokenizer(config).unwrap();
}

/// Receives the first jobs, and sends a message that the front must refuse.
fn break_protocol(tokenizer: u32, generation: u32, fault: u32) {
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let header = |number| Header { replica: tokenizer, generation, number };
    let hello = FromTokenizer::Hello { protocol: PROTOCOL, identity: identity() };
    let hello = frame::encode(header(1), &hello).unwrap();
    socket.write_all(&hello).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reading = socket.try_clone().unwrap();
    reading.set_nonblocking(true).unwrap();
    let jobs = runtime.block_on(async {
        let mut reading = tokio::net::UnixStream::from_std(reading).unwrap();
        let welcome: ToTokenizer = frame::read(&mut reading, header(1)).await.unwrap();
        assert_eq!(welcome, ToTokenizer::Welcome);
        frame::read::<ToTokenizer>(&mut reading, header(2)).await
    });
    let Ok(ToTokenizer::Jobs(jobs)) = jobs else { return };
    socket.set_nonblocking(false).unwrap();
    let results = |number, outcome: Outcome| {
        let results = jobs.iter().map(|job| (job.id, outcome.clone())).collect();
        frame::encode(header(number), &FromTokenizer::Results(results)).unwrap()
    };
    let wrong = Outcome::Texts { texts: Vec::new(), state: DetokenizerState::default() };
    let mut random = Random::new(fault.into());
    let bytes = match fault {
        0 => (0..random.between(40, 400)).map(|_| random.below(256) as u8).collect(),
        1 => {
            let whole = results(2, Outcome::Text("lost".into()));
            whole[..whole.len() - 1].to_vec()
        }
        // Repeats the first message.
        2 => hello,
        // Skips a message number.
        3 => results(3, Outcome::Text("early".into())),
        4 => {
            let mut large = results(2, Outcome::Text("large".into()));
            large[..4].copy_from_slice(&u32::MAX.to_le_bytes());
            large
        }
        5 => {
            let mut corrupted = results(2, Outcome::Text("corrupted".into()));
            let last = corrupted.len() - 1;
            corrupted[last] ^= 1;
            corrupted
        }
        6 => results(2, wrong),
        // Sends a value that is no message.
        _ => frame::encode(header(2), &"results").unwrap(),
    };
    socket.write_all(&bytes).unwrap();
    // The front sees that a frame is truncated when the socket is closed. It must refuse the other
    // frames while the socket is open.
    if fault != 1 {
        let _ = socket.read(&mut [0; 16]);
    }
}

/// A random text of words, emoji, combining characters and the text of a control token.
fn text(random: &mut Random) -> String {
    let parts = ["hello ", "wörld", "🦀", "👩‍👩‍👧", "<|im_end|>", "e\u{301}", "日本", "\n\n", "  ", "\u{fffd}"];
    (0..random.between(0, 60)).map(|_| random.pick(&parts)).collect()
}

/// Runs jobs of all kinds on 8 threads, and compares the results with those of a local tokenizer.
fn compare(client: &TokenizerClient, seed: u64, rounds: usize) {
    let chat = chat();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let run = |thread: u64| {
        let mut random = Random::new(seed + thread);
        let canceled = Arc::new(AtomicBool::new(false));
        for _ in 0..rounds {
            let text = text(&mut random);
            let add_special = random.below(2) == 0;
            let ids = client.encode(&text, add_special, &canceled).unwrap();
            assert_eq!(ids, chat.tokenizer().encode(&text, add_special).unwrap());
            assert_eq!(client.decode(&ids, &canceled).unwrap(), chat.decode(&ids));
            let flags = [random.below(2) == 0, random.below(2) == 0, random.below(2) == 0];
            let mut state = DetokenizerState::new(flags[0], flags[1], flags[2]);
            let mut expected = chat.detokenizer(flags[0], flags[1], flags[2]);
            let mut rest = &ids[..];
            while !rest.is_empty() {
                let (part, remaining) = rest.split_at(random.between(1, rest.len() as u32) as usize);
                let got = runtime.block_on(client.detokenize(state, part.to_vec())).unwrap();
                let texts: Vec<String> = part.iter().map(|token| expected.push(*token)).collect();
                assert_eq!(got.texts, texts);
                (state, rest) = (got.state, remaining);
            }
            assert_eq!(state.finish(), expected.finish());
        }
    };
    thread::scope(|scope| {
        (0..8).for_each(|thread| drop(scope.spawn(move || run(thread))));
    });
}

#[test]
fn results_are_those_of_the_local_tokenizer() {
    let pool = start(identity(), None).unwrap();
    compare(&pool.client(), 100, 30);
    let status = pool.client().status();
    assert!(status.iter().all(|status| status.completed_jobs > 0), "{status:?}");
}

#[test]
fn invalid_messages_are_counted_and_lose_no_job() {
    let mut dropped = 0;
    for first_fault in (0..FAULTS).step_by(2 * FAULTY_GENERATIONS as usize) {
        let pool = start(identity(), Some(first_fault)).unwrap();
        let client = pool.client();
        let is_done =
            |status: &[TokenizerStatus]| status.iter().all(|status| status.restarts == FAULTY_GENERATIONS);
        for round in 0.. {
            compare(&client, 1000 * round, 3);
            if is_done(&client.status()) {
                break;
            }
        }
        dropped += client.status().iter().map(|status| status.dropped_messages).sum::<u64>();
    }
    assert_eq!(dropped, u64::from(FAULTS) - 1, "all faults but the truncated frame");
}

#[test]
fn another_version_is_refused_and_named() {
    let error =
        start(Identity { version: "2".into(), ..identity() }, None).map(drop).unwrap_err().to_string();
    assert!(error.contains("version `1`, the front has `2`"), "{error}");
}

#[test]
fn canceled_jobs_and_jobs_of_a_dropped_pool_fail() {
    let pool = start(identity(), None).unwrap();
    let (client, canceled) = (pool.client(), Arc::new(AtomicBool::new(true)));
    let long = "a b\u{301} ".repeat(1 << 18);
    assert!(matches!(client.encode(&long, false, &canceled), Err(RemoteTokenizerError::Refused(_))));
    drop(pool);
    let late = client.encode("late", false, &Arc::default());
    assert!(matches!(late, Err(RemoteTokenizerError::Unavailable(_))), "{late:?}");
}
