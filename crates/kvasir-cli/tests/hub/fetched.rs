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
