//! Saves llama.cpp's slots to files and restores them in other servers. On the toy device every
//! output depends on every K/V row that it reads, so a wrong row changes tokens.

use super::server::Server;
use kvasir_engine::{KvFile, KvFileHeader, KvFileWriter};
use kvasir_kv::CacheKind;
use kvasir_serve::http::ApiKey;
use kvasir_testkit::{Random, paths::scratch};
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

fn empty_folder(name: &str) -> PathBuf {
    scratch(env!("CARGO_TARGET_TMPDIR"), &format!("slots-{name}"))
}

fn saving_server(folder: &Path) -> Server {
    Server::saving_slots(folder, CacheKind::Radix, Vec::new())
}

fn completion(server: &Server, prompt: &[u32], extra: Value) -> Value {
    let mut body = json!({
        "prompt": prompt, "temperature": 0, "ignore_eos": true, "n_predict": 20, "return_tokens": true,
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let (status, answer) = server.post("/completion", &body);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn run_action(server: &Server, slot: u32, action: &str, filename: &str) -> (u16, Value) {
    run_action_as(server, "", slot, action, filename)
}

fn run_action_as(server: &Server, key: &str, slot: u32, action: &str, filename: &str) -> (u16, Value) {
    let path = format!("/slots/{slot}?action={action}");
    server.send("POST", &path, key, &json!({"filename": filename}).to_string())
}

fn number(answer: &Value, name: &str) -> u64 {
    let number = answer[name].as_u64();
    assert!(number.is_some(), "{name}: {answer}");
    number.unwrap_or_default()
}

fn tokens(answer: &Value) -> Vec<u32> {
    serde_json::from_value(answer["tokens"].clone()).unwrap()
}

#[test]
fn restored_slots_give_the_tokens_of_recomputed_ones() {
    let folder = empty_folder("alike");
    let mut cached = 0;
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let kind = random.pick(&[CacheKind::Radix, CacheKind::Paged]);
        let start = || Server::saving_slots(&folder, kind, Vec::new());
        let prompt: Vec<u32> = (0..random.between(1, 300)).map(|_| 20 + random.below(400) as u32).collect();
        let slot = random.between(0, 5);
        let first = start();
        let answer = completion(&first, &prompt, json!({"id_slot": slot}));
        assert_eq!(number(&answer, "id_slot"), u64::from(slot));
        let (status, saved) = run_action(&first, slot, "save", "a.bin");
        assert_eq!((status, &saved["id_slot"], &saved["filename"]), (200, &json!(slot), &json!("a.bin")));
        let written = fs::metadata(folder.join("a.bin")).unwrap().len();
        assert_eq!(number(&saved, "n_written"), written);
        let whole = [prompt, tokens(&answer)].concat();
        // The exporting request must still run when its last block is exported, so K/V of the last
        // two tokens is not saved.
        let rows = (whole.len() as u64 - 2) / 16 * 16;
        assert_eq!(number(&saved, "n_saved"), rows, "seed {seed}");
        drop(first);

        let (second, fresh) = (start(), start());
        let (status, restored) = run_action(&second, 2, "restore", "a.bin");
        assert_eq!((status, number(&restored, "n_restored")), (200, rows), "seed {seed}: {restored}");
        assert_eq!(number(&restored, "n_read"), written);
        let next = [whole, vec![21, 22]].concat();
        let [answer, expected] = [&second, &fresh].map(|server| completion(server, &next, json!({})));
        assert_eq!(tokens(&answer), tokens(&expected), "seed {seed}");
        // The request that confirms the import may have computed some of the next tokens.
        assert!(number(&answer, "tokens_cached") >= rows, "seed {seed}: {answer}");
        assert_eq!(number(&expected, "tokens_cached"), 0);
        assert_eq!(number(&answer, "id_slot"), 2, "the slot with the longest common prefix");
        cached += rows;
        // A restored slot can be saved again.
        assert_eq!(run_action(&second, 2, "save", "a.bin").0, 200);
    }
    assert!(cached > 2000, "{cached}");
}

#[test]
fn refused_files_change_nothing() {
    let folder = empty_folder("corrupt");
    let prompt: Vec<u32> = (20..120).collect();
    let server = saving_server(&folder);
    completion(&server, &prompt, json!({"id_slot": 0}));
    assert_eq!(run_action(&server, 0, "save", "whole.bin").0, 200);
    let whole = fs::read(folder.join("whole.bin")).unwrap();
    let server = saving_server(&folder);
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let at = random.below(whole.len() as u64) as usize;
        let (bytes, why) = match seed % 3 {
            0 => (whole[..at].to_vec(), ""),
            1 => {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << random.below(8);
                (bytes, "cannot be restored")
            }
            _ => (vec![random.below(256) as u8; at], "it is not a K/V file"),
        };
        fs::write(folder.join("bad.bin"), bytes).unwrap();
        let (status, answer) = run_action(&server, 1, "restore", "bad.bin");
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("filename")), "seed {seed}: {answer}");
        assert!(message.contains(why), "seed {seed}: {message}");
    }
    fs::write(folder.join("short.bin"), &whole[..whole.len() - 1]).unwrap();
    let (_, answer) = run_action(&server, 1, "restore", "short.bin");
    let sizes = format!("truncated: {} of {} bytes", whole.len() - 1, whole.len());
    assert!(answer["error"]["message"].as_str().unwrap().contains(&sizes), "{answer}");
    assert_eq!(run_action(&server, 1, "save", "x.bin").0, 409, "the slot is still empty");
    assert_eq!(number(&completion(&server, &prompt, json!({})), "tokens_cached"), 0);
}

#[test]
fn corrupt_headers_are_not_reported_as_another_model() {
    let folder = empty_folder("headers");
    let server = saving_server(&folder);
    completion(&server, &Vec::from_iter(20..120), json!({"id_slot": 0}));
    assert_eq!(run_action(&server, 0, "save", "whole.bin").0, 200);
    let mut file = KvFile::open(File::open(folder.join("whole.bin")).unwrap()).unwrap();
    let (header, mut rows) = (file.header().clone(), Vec::new());
    file.read_chunk(&(0..header.row_count), &mut rows).unwrap();
    let mut unknown_token = header.clone();
    unknown_token.tokens[0] = u32::MAX;
    let short = KvFileHeader { final_len: header.row_count, ..header };
    for (header, why) in [(unknown_token, "is not in the vocabulary"), (short, "do not fit the final length")]
    {
        let forged = File::create(folder.join("forged.bin")).unwrap();
        let mut writer = KvFileWriter::new(forged, &header).unwrap();
        writer.write(&rows).unwrap();
        writer.finish().unwrap();
        let (status, answer) = run_action(&server, 1, "restore", "forged.bin");
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("filename")), "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("its header is corrupt") && message.contains(why), "{message}");
    }
}

#[test]
fn file_names_stay_in_the_directory() {
    let folder = empty_folder("names");
    let server = saving_server(&folder);
    completion(&server, &[20, 21, 22], json!({"id_slot": 0}));
    let outside = empty_folder("names-outside");
    fs::write(outside.join("secret"), "secret").unwrap();
    symlink(outside.join("secret"), folder.join("link")).unwrap();
    fs::create_dir(folder.join("folder")).unwrap();
    let up = format!("../{}/secret", outside.file_name().unwrap().to_str().unwrap());
    let long = "x".repeat(300);
    for name in ["", "..", ".", &up, "/etc/passwd", "a/b", "a\\b", "a\0b", "link", "folder", &long] {
        for action in ["save", "restore"] {
            let (status, answer) = run_action(&server, 0, action, name);
            let refused = (status, &answer["error"]["param"]);
            assert_eq!(refused, (400, &json!("filename")), "{action} {name}: {answer}");
        }
    }
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "secret");
    let (status, answer) = run_action(&server, 0, "restore", "none");
    assert_eq!((status, &answer["error"]["param"]), (404, &json!("filename")), "{answer}");
    assert_eq!(files(&folder), ["folder", "link"], "no partial file is left");
    let (status, _) = server.send("POST", "/slots/0?action=save", "", "{}");
    assert_eq!(status, 400, "without a name");
}

fn files(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn keys_have_slots_and_files_of_their_own() {
    let folder = empty_folder("keys");
    let key = |name: Option<&str>, secret: &str| ApiKey {
        name: name.map(str::to_owned),
        secret: secret.into(),
        is_admin: false,
    };
    let keys = vec![key(Some("alice"), "a"), key(Some("bob"), "b"), key(None, "c")];
    let server = Server::saving_slots(&folder, CacheKind::Radix, keys);
    let prompt: Vec<u32> = (20..120).collect();
    let body = json!({"prompt": prompt, "n_predict": 4, "id_slot": 1}).to_string();
    for key in ["a", "c"] {
        assert_eq!(server.send("POST", "/completion", key, &body).0, 200);
    }
    assert_eq!(run_action_as(&server, "a", 1, "save", "x").0, 200);
    assert_eq!((files(&folder), files(&folder.join("alice"))), (vec!["alice".into()], vec!["x".into()]));
    assert_eq!(run_action_as(&server, "b", 1, "save", "x").0, 409, "the slot of another key is not saved");
    assert_eq!(run_action_as(&server, "b", 1, "restore", "x").0, 404);
    assert_eq!(run_action_as(&server, "c", 1, "save", "x").0, 403, "a key without a name has no folder");
    // K/V restored by one key is not hit by others.
    assert_eq!(run_action_as(&server, "a", 2, "restore", "x").0, 200);
    let (_, answer) = server.send("POST", "/completion", "b", &body);
    assert_eq!(number(&answer, "tokens_cached"), 0);
}

#[test]
fn slots_can_be_erased_and_their_numbers_are_checked() {
    let folder = empty_folder("bounds");
    let server = saving_server(&folder);
    let prompt: Vec<u32> = (20..120).collect();
    completion(&server, &prompt, json!({"id_slot": 0}));
    let (status, answer) = run_action(&server, 0, "erase", "");
    assert_eq!((status, number(&answer, "n_erased")), (200, 120));
    assert_eq!(run_action(&server, 0, "save", "x").0, 409);
    assert_eq!(number(&completion(&server, &prompt, json!({"id_slot": 0})), "tokens_cached"), 0);
    let slots = server.send("GET", "/slots", "", "").1.as_array().unwrap().len();
    let (status, answer) = server.post("/completion", &json!({"prompt": "a", "id_slot": slots}));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("id_slot")), "{answer}");
    assert_eq!(run_action(&server, slots as u32, "save", "x").0, 400);
    // Chats are recorded in slots, too.
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "id_slot": 3});
    assert_eq!(server.post("/v1/chat/completions", &chat).0, 200);
    assert_eq!(run_action(&server, 3, "save", "chat").0, 200);
    // Slots are not recorded if they cannot be saved.
    let plain = Server::start(CacheKind::Radix, 512, &[]);
    let body = json!({"prompt": "a", "n_predict": 2, "id_slot": 0});
    assert_eq!(plain.ignored("/completion", &body).as_deref(), Some("id_slot"));
    assert_eq!(completion(&plain, &[20], json!({"id_slot": -1}))["id_slot"], json!(-1));
    assert_eq!(run_action(&plain, 0, "save", "x").0, 501);
}
