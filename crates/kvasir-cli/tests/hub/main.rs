//! Hub models by name: found in the cache, or fetched from a fake hub on loopback, by a
//! command or by a client of a server.
#![allow(clippy::unwrap_used)]

mod fetched;
mod loopback;
mod served;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_ours";

fn model() -> PathBuf {
    kvasir_testkit::paths::model("qwen3")
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("kvasir-hub-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A cache with one model: the cache, the model's folder and its snapshot.
fn cached(name: &str) -> (PathBuf, PathBuf, PathBuf) {
    let cache = folder(name);
    let of_model = cache.join("models--acme--tiny");
    let snapshot = of_model.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(of_model.join("refs")).unwrap();
    fs::write(of_model.join("refs/main"), COMMIT).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(model().join(file), snapshot.join(file)).unwrap();
    }
    (cache, of_model, snapshot)
}

fn inspect(cache: &Path, endpoint: &str, name: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    command.args(["inspect", name]).env("HF_HUB_CACHE", cache).env("HF_ENDPOINT", endpoint);
    command.env("NO_PROXY", "127.0.0.1").env("HF_TOKEN", TOKEN).env_remove("HF_HUB_OFFLINE");
    command.output().unwrap()
}

fn printed(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn a_model_in_the_cache_is_used_without_a_network() {
    let (cache, of_model, snapshot) = cached("cache");
    // An unreachable endpoint.
    let nowhere = "http://127.0.0.1:9";
    for name in ["acme/tiny", "acme/tiny@main", &format!("acme/tiny@{COMMIT}")] {
        let out = inspect(&cache, nowhere, name);
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        assert!(String::from_utf8_lossy(&out.stdout).contains("Qwen3ForCausalLM"));
    }
    for name in ["acme/other", "acme/tiny@v2"] {
        let out = inspect(&cache, nowhere, name);
        let printed = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success());
        assert!(
            printed.lines().count() == 1 && printed.contains(name.split('@').next().unwrap()),
            "{printed}"
        );
    }
    // The error names what is missing: a revision, a tag, a shard.
    let index = r#"{"weight_map": {"a": "model.safetensors", "b": "more.safetensors"}}"#;
    fs::write(snapshot.join("model.safetensors.index.json"), index).unwrap();
    fs::write(snapshot.join("m-Q4_0-00002-of-00002.gguf"), "").unwrap();
    for (name, missing) in [
        ("acme/tiny@v2", "revision v2"),
        ("acme/tiny:Q8", "\"q8\""),
        ("acme/tiny", "more.safetensors"),
        ("acme/tiny:Q4_0", "m-Q4_0-00001-of-00002.gguf"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command.args(["inspect", name]).env("HF_HUB_CACHE", &cache).env("HF_HUB_OFFLINE", "1");
        let printed = printed(&command.output().unwrap());
        let whole =
            printed.lines().count() == 1 && printed.contains(missing) && printed.contains("HF_HUB_OFFLINE");
        assert!(whole, "{name}: {printed}");
    }
    fs::create_dir_all(cache.join("outside")).unwrap();
    fs::write(of_model.join("refs/main"), "../../../outside").unwrap();
    let printed = String::from_utf8(inspect(&cache, nowhere, "acme/tiny").stderr).unwrap();
    assert!(printed.contains("refs/main: holds no commit's name"), "{printed}");
    let _ = fs::remove_dir_all(cache);
}

#[test]
fn every_command_finds_a_model_by_its_name() {
    let (cache, _, snapshot) = cached("commands");
    let tokenizer = "../kvasir-formats/tests/data/tokenizers/qwen";
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(tokenizer)).unwrap() {
        let file = file.unwrap().path();
        fs::copy(&file, snapshot.join(file.file_name().unwrap())).unwrap();
    }
    let out = cache.join("out.gguf");
    for args in [
        vec!["tokenize", "acme/tiny"],
        vec!["template", "acme/tiny", "--json"],
        vec!["convert", "acme/tiny", out.to_str().unwrap(), "--dtype", "f16"],
        vec!["bench", "pp", "acme/tiny", "--tokens", "4", "--reps", "1"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command.args(&args).env("HF_HUB_CACHE", &cache).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = command.stderr(Stdio::piped()).spawn().unwrap();
        running.stdin.take().unwrap().write_all(b"[]").unwrap();
        let printed = running.wait_with_output().unwrap();
        assert!(printed.status.success(), "{args:?}: {}", String::from_utf8_lossy(&printed.stderr));
    }
    let _ = fs::remove_dir_all(cache);
}

#[test]
fn a_draft_head_is_found_by_its_name() {
    let cache = folder("head");
    let of_head = cache.join("models--acme--head");
    let snapshot = of_head.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(of_head.join("refs")).unwrap();
    fs::write(of_head.join("refs/main"), COMMIT).unwrap();
    let target = kvasir_testkit::paths::model("eagle3_qwen3");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(target.join("draft").join(file), snapshot.join(file)).unwrap();
    }
    let generate = |head: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command.arg("generate").arg(&target).args(["--prompt-ids", "5,6,7", "--max-tokens", "4", "--json"]);
        command.args(["--spec", head]).env("HF_HUB_CACHE", &cache).env("HF_HUB_OFFLINE", "1");
        command.output().unwrap()
    };
    let out = generate("eagle3:acme/head,depth=2,topk=1");
    assert!(out.status.success(), "{}", printed(&out));
    let out = generate("eagle3:acme/none,depth=2");
    assert!(!out.status.success() && printed(&out).contains("acme/none"), "{}", printed(&out));
    fs::rename(snapshot.join("model.safetensors"), snapshot.join("pytorch_model.bin")).unwrap();
    let out = generate("eagle3:acme/head");
    assert!(!out.status.success() && printed(&out).contains("`.bin` files only"), "{}", printed(&out));
    let _ = fs::remove_dir_all(cache);
}

#[test]
fn models_of_cache_and_folder_are_listed() {
    let (cache, _, snapshot) = cached("list");
    let folder = folder("list-folder");
    fs::copy(
        kvasir_testkit::paths::repository().join("crates/kvasir/kvasir-mini.gguf"),
        folder.join("mini.gguf"),
    )
    .unwrap();
    fs::write(folder.join("notes.txt"), "no model").unwrap();
    let list = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        let out = command.arg("models").args(args).env("HF_HUB_CACHE", &cache).output().unwrap();
        assert!(out.status.success(), "{}", printed(&out));
        String::from_utf8(out.stdout).unwrap()
    };
    let text = list(&["--models-dir", folder.to_str().unwrap()]);
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.lines().next().unwrap().starts_with("acme/tiny "), "{text}");
    assert!(text.contains("mini.gguf") && text.contains("Q8_0") && text.contains("4096 tokens"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("kvasir-mini ") && text.contains(" 5.5M "), "{text}");
    let json: serde_json::Value = serde_json::from_str(&list(&["--json"])).unwrap();
    assert_eq!((&json[0]["name"], &json[0]["model"]["architecture"]), (&"acme/tiny".into(), &"qwen3".into()));
    // What cannot be opened is listed with the reason.
    fs::remove_file(snapshot.join("model.safetensors")).unwrap();
    fs::write(snapshot.join("model.safetensors"), "short").unwrap();
    assert!(list(&[]).contains("truncated"));
}
