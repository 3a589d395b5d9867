//! What a sentence-transformers directory says beside `config.json`: pooling and truncation.
//!
//! `modules.json` lists the steps behind the model: `Transformer`, `Pooling`, `Normalize`. The pooling
//! step's config and `sentence_bert_config.json` become the config keys `pooling_mode` and
//! `max_seq_length`. Other steps change the vectors and are refused by name.

use crate::error::{Error, Result};
use crate::files::read::read_json;
use kvasir_program::Architecture;
use serde_json::Value as Json;
use std::path::{Component, Path, PathBuf};

/// The flag of each pooling, and its name under `pooling_mode`.
const POOLINGS: [(&str, &str); 3] = [
    ("pooling_mode_mean_tokens", "mean"),
    ("pooling_mode_cls_token", "cls"),
    ("pooling_mode_lasttoken", "lasttoken"),
];
/// Tokenizers without a limit have a huge number here.
const NO_LIMIT: u64 = 1 << 24;

/// Adds `pooling_mode` and `max_seq_length` to the config of a directory that has them.
pub(crate) fn describe(dir: &Path, config: &mut Json) -> Result<()> {
    let pooling = match read_json(&dir.join("modules.json"))? {
        Some(modules) => pooling(dir, &modules)?,
        None => None,
    };
    let longest = longest(dir, config)?;
    let Some(map) = config.as_object_mut() else { return Ok(()) };
    for (key, value) in
        [("pooling_mode", pooling.map(Json::from)), ("max_seq_length", longest.map(Json::from))]
    {
        if let Some(value) = value {
            map.insert(key.to_owned(), value);
        }
    }
    Ok(())
}

fn pooling(dir: &Path, modules: &Json) -> Result<Option<&'static str>> {
    let bad = |why: String| Error::at(dir.join("modules.json").display(), why);
    let modules = modules.as_array().ok_or_else(|| bad("is not a list".to_owned()))?;
    let mut found = None;
    for module in modules {
        let text = |key: &str| module.get(key).and_then(Json::as_str).unwrap_or_default();
        let kind = text("type").rsplit('.').next().unwrap_or_default();
        match kind {
            "Transformer" | "Normalize" => {}
            "Pooling" => {
                let path = beside(dir, text("path"))
                    .ok_or_else(|| bad(format!("`{}` is no directory beside it", text("path"))))?;
                found = Some(pooling_of(&path.join("config.json"))?);
            }
            other => return Err(bad(format!("the step `{other}` is not supported"))),
        }
    }
    Ok(found)
}

/// A directory of plain names below `dir`.
fn beside(dir: &Path, name: &str) -> Option<PathBuf> {
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    is_plain.then(|| dir.join(name))
}

fn pooling_of(path: &Path) -> Result<&'static str> {
    let config = read_json(path)?.ok_or_else(|| Error::at(path.display(), "is missing"))?;
    let flags = config.as_object().into_iter().flatten();
    let modes = flags.filter(|(key, value)| key.starts_with("pooling_mode_") && **value == Json::Bool(true));
    let mut modes = modes.map(|(key, _)| key.as_str());
    let bad = |what: &str| {
        Error::at(path.display(), format!("{what}: only one of mean, cls and lasttoken is supported"))
    };
    match (modes.next(), modes.next()) {
        (Some(mode), None) => {
            let known = POOLINGS.iter().find(|(flag, _)| *flag == mode);
            known.map(|(_, name)| *name).ok_or_else(|| bad(mode))
        }
        (Some(first), Some(second)) => Err(bad(&format!("{first} and {second}"))),
        (None, _) => Err(bad("no pooling mode")),
    }
}

/// The length that texts are truncated to: of `sentence_bert_config.json`, else the tokenizer's of an
/// encoder.
fn longest(dir: &Path, config: &Json) -> Result<Option<u64>> {
    let number = |json: Option<Json>, key: &str| json.and_then(|json| json.get(key)?.as_u64());
    let trained = number(read_json(&dir.join("sentence_bert_config.json"))?, "max_seq_length");
    if trained.is_some() {
        return Ok(trained);
    }
    if !Architecture::of(config).is_ok_and(Architecture::is_encoder) {
        return Ok(None);
    }
    let of_tokenizer = read_json(&dir.join("tokenizer_config.json"))?;
    // Written as a float where it is huge.
    Ok(number(of_tokenizer, "model_max_length").filter(|length| (1..NO_LIMIT).contains(length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn described(files: &[(&str, Json)]) -> Result<Json> {
        let dir = tempfile_dir(files);
        let mut config = json!({"architectures": ["BertModel"]});
        let done = describe(&dir, &mut config);
        std::fs::remove_dir_all(&dir).unwrap();
        done.map(|()| config)
    }

    fn tempfile_dir(files: &[(&str, Json)]) -> PathBuf {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvasir-sentence-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        for (name, json) in files {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, json.to_string()).unwrap();
        }
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn modules(kinds: &[(&str, &str)]) -> Json {
        let module = |(kind, path): &(&str, &str)| json!({"type": format!("sentence_transformers.models.{kind}"), "path": path});
        kinds.iter().map(module).collect()
    }

    #[test]
    fn pooling_and_length_become_config_keys() {
        let steps = modules(&[("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]);
        let config = described(&[
            ("modules.json", steps),
            (
                "1_Pooling/config.json",
                json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}),
            ),
            ("sentence_bert_config.json", json!({"max_seq_length": 256})),
            ("tokenizer_config.json", json!({"model_max_length": 512})),
        ]);
        let config = config.unwrap();
        assert_eq!(
            (config["pooling_mode"].as_str(), config["max_seq_length"].as_u64()),
            (Some("cls"), Some(256))
        );
        let config = described(&[("tokenizer_config.json", json!({"model_max_length": 512}))]).unwrap();
        assert_eq!((config.get("pooling_mode"), config["max_seq_length"].as_u64()), (None, Some(512)));
        let config = described(&[("tokenizer_config.json", json!({"model_max_length": 1e30}))]).unwrap();
        assert_eq!(config.get("max_seq_length"), None);
    }

    #[test]
    fn steps_and_poolings_that_are_not_supported_are_refused_by_name() {
        let error = |files: &[(&str, Json)]| described(files).unwrap_err().to_string();
        assert!(error(&[("modules.json", modules(&[("Dense", "2_Dense")]))]).contains("`Dense`"));
        assert!(error(&[("modules.json", modules(&[("Pooling", "../x")]))]).contains("`../x`"));
        let pooled = |config: Json| {
            error(&[
                ("modules.json", modules(&[("Pooling", "1_Pooling")])),
                ("1_Pooling/config.json", config),
            ])
        };
        assert!(pooled(json!({"pooling_mode_max_tokens": true})).contains("pooling_mode_max_tokens"));
        assert!(pooled(json!({})).contains("no pooling mode"));
        let two = json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true});
        assert!(pooled(two).contains("pooling_mode_cls_token and pooling_mode_mean_tokens"));
    }
}
