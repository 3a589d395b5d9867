//! Hub downloads: fetched once, resumed after interruption, verified against the listing.

use super::{
    COMMIT, folder, inspect,
    loopback::{Hub, Wrong},
    printed,
};
use std::fs;

#[test]
fn a_model_is_fetched_once() {
    let (cache, hub) = (folder("fetch"), Hub::new(Wrong::Nothing));
    let out = inspect(&cache, &hub.endpoint, "acme/tiny");
    assert!(out.status.success(), "{}", printed(&out));
    assert!(printed(&out).contains("model.safetensors of acme/tiny, file 2 of 2"), "{}", printed(&out));
    let again = inspect(&cache, "http://127.0.0.1:9", "acme/tiny");
    assert!(again.status.success(), "{}", printed(&again));
    assert_eq!(out.stdout, again.stdout);
    let of_model = cache.join("models--acme--tiny");
    assert_eq!(fs::read_to_string(of_model.join("refs/main")).unwrap(), COMMIT);
    assert!(!of_model.join("snapshots").join(COMMIT).join("README.md").exists());
    let none = inspect(&cache, &hub.endpoint, "acme/none");
    assert_eq!(none.status.code(), Some(1));
    assert!(printed(&none).contains("no such model or revision"), "{}", printed(&none));
    let _ = fs::remove_dir_all(cache);
}

#[test]
fn a_short_name_is_resolved_once_and_its_repository_told() {
    let (cache, hub) = (folder("short"), Hub::new(Wrong::Nothing));
    let out = inspect(&cache, &hub.endpoint, "qwen3:0.6b");
    let resolution = "qwen3:0.6b is Qwen/Qwen3-0.6B-GGUF:Q8_0; fetching";
    assert!(out.status.success() && printed(&out).contains(resolution), "{}", printed(&out));
    for name in ["qwen3:0.6b", "Qwen3:0.6B", "hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0"] {
        let again = inspect(&cache, "http://127.0.0.1:9", name);
        assert!(again.status.success() && !printed(&again).contains("fetching"), "{}", printed(&again));
        assert_eq!(out.stdout, again.stdout);
    }
    // What cannot be fetched is told by both names.
    let none = inspect(&cache, "http://127.0.0.1:9", "llama3.2:1b");
    assert!(
        printed(&none).contains("llama3.2:1b is bartowski/Llama-3.2-1B-Instruct-GGUF"),
        "{}",
        printed(&none)
    );
    let _ = fs::remove_dir_all(cache);
}

#[test]
fn a_short_name_in_the_models_folder_needs_no_hub() {
    let (cache, models) = (folder("folder-cache"), folder("folder-models"));
    let mini = kvasir_testkit::paths::repository().join("crates/kvasir/kvasir-mini.gguf");
    for file in ["Llama-3.2-3B-Instruct-Q4_K_M.gguf", "mine.gguf"] {
        fs::copy(&mini, models.join(file)).unwrap();
    }
    for name in ["llama3.2", "llama3.2:3b", "mine"] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command.args(["inspect", name]).env("HF_HUB_CACHE", &cache).env("HF_ENDPOINT", "http://127.0.0.1:9");
        let out = command.env("KVASIR_MODELS_DIR", &models).output().unwrap();
        assert!(out.status.success(), "{name}: {}", printed(&out));
    }
    for folder in [cache, models] {
        let _ = fs::remove_dir_all(folder);
    }
}

#[test]
fn interrupted_downloads_resume() {
    let (cache, broken, whole) = (folder("broken"), Hub::new(Wrong::Breaks), Hub::new(Wrong::Nothing));
    for name in ["acme/tiny".to_owned(), format!("acme/tiny@{COMMIT}")] {
        let out = inspect(&cache, &broken.endpoint, &name);
        assert_eq!(out.status.code(), Some(1), "{}", printed(&out));
        assert!(printed(&out).lines().last().unwrap().contains("asking again"), "{}", printed(&out));
    }
    // A partial model must not be named by its revision's ref.
    assert!(!cache.join("models--acme--tiny/refs/main").exists());
    let began = broken.began();
    assert!(began.first() == Some(&0) && began.windows(2).all(|w| w[0] < w[1]), "{began:?}");
    let out = inspect(&cache, &whole.endpoint, "acme/tiny");
    assert!(out.status.success(), "{}", printed(&out));
    let rest = whole.began();
    assert!(rest.len() == 1 && rest > began[began.len() - 1..].to_vec(), "{rest:?} after {began:?}");
    let _ = fs::remove_dir_all(cache);
}

#[test]
fn downloads_must_match_the_hub_listing() {
    for (wrong, words) in [
        (Wrong::Lies, "did not send the config.json that it lists"),
        (Wrong::LeadsOutside, "nor a GGUF file"),
        (Wrong::Locked, "HF_TOKEN"),
    ] {
        let (cache, hub) = (folder(&format!("{wrong:?}")), Hub::new(wrong));
        let out = inspect(&cache, &hub.endpoint, "acme/tiny");
        assert!(!out.status.success() && printed(&out).contains(words), "{wrong:?}: {}", printed(&out));
        // The bad download is not taken for a model later.
        let out = inspect(&cache, "http://127.0.0.1:9", "acme/tiny");
        assert!(!out.status.success(), "{wrong:?}");
        // Nor does it block a good download.
        let out = inspect(&cache, &Hub::new(Wrong::Nothing).endpoint, "acme/tiny");
        assert!(out.status.success(), "{wrong:?}: {}", printed(&out));
        let _ = fs::remove_dir_all(cache);
    }
}
