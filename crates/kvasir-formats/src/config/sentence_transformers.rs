//! Reads the pooling mode and the maximum sequence length of a sentence-transformers directory.
//!
//! `modules.json` lists the modules of the pipeline: `Transformer`, `Pooling`, `Normalize`. The
//! config of the pooling module sets the config key `pooling_mode`, and `sentence_bert_config.json`
//! sets `max_seq_length`. Other modules would change the vectors and are refused by name.

use crate::error::{Error, Result};
use crate::files::read::read_json;
use kvasir_program::Architecture;
use serde_json::Value as Json;
use std::path::{Component, Path, PathBuf};

/// Flags of `1_Pooling/config.json`, and the value of `pooling_mode` that each one sets.
const POOLING_MODES: [(&str, &str); 3] = [
    ("pooling_mode_mean_tokens", "mean"),
    ("pooling_mode_cls_token", "cls"),
    ("pooling_mode_lasttoken", "lasttoken"),
];
/// A `model_max_length` from here on means no limit: Transformers writes 1e30.
const NO_LIMIT: u64 = 1 << 24;

/// Sets `pooling_mode` and `max_seq_length` in `config`, each if the directory specifies it.
pub(crate) fn add_config_keys(dir: &Path, config: &mut Json) -> Result<()> {
    let pooling = match read_json(&dir.join("modules.json"))? {
        Some(modules) => pooling(dir, &modules)?,
        None => None,
    };
    let max_length = max_seq_length(dir, config)?;
    let Some(map) = config.as_object_mut() else { return Ok(()) };
    for (key, value) in
        [("pooling_mode", pooling.map(Json::from)), ("max_seq_length", max_length.map(Json::from))]
    {
        if let Some(value) = value {
            map.insert(key.to_owned(), value);
        }
    }
    Ok(())
}

/// The pooling mode of the `Pooling` module; `None` without such a module.
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
                let path = subdirectory(dir, text("path")).ok_or_else(|| {
                    bad(format!("the path `{}` is not a subdirectory of the model", text("path")))
                })?;
                found = Some(read_pooling_mode(&path.join("config.json"))?);
            }
            other => return Err(bad(format!("the module `{other}` is not supported"))),
        }
    }
    Ok(found)
}

/// The directory `name` below `dir`; `None` if it is absolute or has `..`.
fn subdirectory(dir: &Path, name: &str) -> Option<PathBuf> {
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    is_plain.then(|| dir.join(name))
}

/// The only pooling mode that the config of a pooling module enables.
fn read_pooling_mode(path: &Path) -> Result<&'static str> {
    let config = read_json(path)?.ok_or_else(|| Error::at(path.display(), "is missing"))?;
    let flags = config.as_object().into_iter().flatten();
    let modes = flags.filter(|(key, value)| key.starts_with("pooling_mode_") && **value == Json::Bool(true));
    let mut modes = modes.map(|(key, _)| key.as_str());
    let bad = |what: &str| {
        Error::at(path.display(), format!("{what}: only one of mean, cls and lasttoken is supported"))
    };
    match (modes.next(), modes.next()) {
        (Some(mode), None) => {
            let known = POOLING_MODES.iter().find(|(flag, _)| *flag == mode);
            known.map(|(_, name)| *name).ok_or_else(|| bad(mode))
        }
        (Some(first), Some(second)) => Err(bad(&format!("{first} and {second}"))),
        (None, _) => Err(bad("no pooling mode")),
    }
}

/// The maximum number of tokens of a text: `max_seq_length` of `sentence_bert_config.json`, else,
/// for encoders, `model_max_length` of `tokenizer_config.json`.
fn max_seq_length(dir: &Path, config: &Json) -> Result<Option<u64>> {
    let number = |json: Option<Json>, key: &str| json.and_then(|json| json.get(key)?.as_u64());
    let configured = number(read_json(&dir.join("sentence_bert_config.json"))?, "max_seq_length");
    if configured.is_some() {
        return Ok(configured);
    }
    if !Architecture::of(config).is_ok_and(|known| known.is_encoder) {
        return Ok(None);
    }
    let tokenizer_config = read_json(&dir.join("tokenizer_config.json"))?;
    // Transformers writes 1e30, which is not a u64, or another huge number for no limit.
    Ok(number(tokenizer_config, "model_max_length").filter(|length| (1..NO_LIMIT).contains(length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config_of(files: &[(&str, Json)]) -> Result<Json> {
        let dir = write_files(files);
        let mut config = json!({"architectures": ["BertModel"]});
        let result = add_config_keys(&dir, &mut config);
        std::fs::remove_dir_all(&dir).unwrap();
        result.map(|()| config)
    }

    fn write_files(files: &[(&str, Json)]) -> PathBuf {
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
        let pipeline =
            modules(&[("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]);
        let config = config_of(&[
            ("modules.json", pipeline),
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
        let config = config_of(&[("tokenizer_config.json", json!({"model_max_length": 512}))]).unwrap();
        assert_eq!((config.get("pooling_mode"), config["max_seq_length"].as_u64()), (None, Some(512)));
        let config = config_of(&[("tokenizer_config.json", json!({"model_max_length": 1e30}))]).unwrap();
        assert_eq!(config.get("max_seq_length"), None);
    }

    #[test]
    fn unsupported_modules_and_pooling_modes_are_refused_by_name() {
        let error = |files: &[(&str, Json)]| config_of(files).unwrap_err().to_string();
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
