//! Text files of a model: tokenizer, chat template and special tokens, from a directory, GGUF or
//! `tokenizer.json`.

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::files::read::{read_json, read_text};
use crate::gguf::reader::Gguf;
use crate::tokenizer::Tokenizer;
use kvasir_template::ChatTemplate;
use serde_json::{Map, Value as Json};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

const MAX_TOKENIZER: u64 = 256 << 20;
const MAX_TEMPLATE: u64 = 4 << 20;

/// Access to a model's tokenizer, chat template and special tokens, without loading weights.
///
/// A vocabulary-only GGUF file or a single `tokenizer.json` is enough.
#[derive(Debug, Clone)]
pub struct TextFiles {
    place: Place,
    /// `tokenizer_config.json`, if present.
    config: Option<Json>,
    special_map: Option<Json>,
}

#[derive(Debug, Clone)]
enum Place {
    Dir(PathBuf),
    Json(PathBuf),
    Gguf(Arc<Gguf>),
}

impl Checkpoint {
    /// Tokenizer, chat template and related files.
    pub fn text_files(&self) -> Result<TextFiles> {
        match self.gguf() {
            Some(gguf) => Ok(TextFiles::of_gguf(Arc::clone(gguf))),
            None => TextFiles::open(self.path()),
        }
    }

    /// The tokenizer; `None` if there is no `tokenizer.json` or GGUF vocabulary.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>> {
        let has_vocabulary = match self.gguf() {
            Some(gguf) => gguf.array("tokenizer.ggml.tokens").is_some(),
            None => self.path().join("tokenizer.json").exists(),
        };
        has_vocabulary.then(|| self.text_files()?.tokenizer()).transpose()
    }
}

impl TextFiles {
    /// Opens a model directory, a GGUF file or a `tokenizer.json`. Only small config files are
    /// read.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            let config = read_json(&path.join("tokenizer_config.json"))?;
            let special_map = read_json(&path.join("special_tokens_map.json"))?;
            return Ok(Self { place: Place::Dir(path.to_owned()), config, special_map });
        }
        let json = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
        let place =
            if json { Place::Json(path.to_owned()) } else { Place::Gguf(Arc::new(Gguf::open(path)?)) };
        Ok(Self { place, config: None, special_map: None })
    }

    /// Uses an already opened GGUF file.
    pub fn of_gguf(gguf: Arc<Gguf>) -> Self {
        Self { place: Place::Gguf(gguf), config: None, special_map: None }
    }

    /// Loads the tokenizer; parses the whole vocabulary on each call.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let path = match &self.place {
            Place::Gguf(gguf) => return Tokenizer::from_gguf(gguf),
            Place::Json(path) => path.clone(),
            Place::Dir(dir) => dir.join("tokenizer.json"),
        };
        let text = read_text(&path, MAX_TOKENIZER)?.ok_or_else(|| Error::at(path.display(), "is missing"))?;
        Tokenizer::from_json(text.as_bytes()).map_err(|e| e.in_file(&path))
    }

    /// The source of the named or default chat template; `None` if the model has none.
    pub fn template_source(&self, name: Option<&str>) -> Result<Option<String>> {
        match &self.place {
            Place::Gguf(gguf) => {
                let key = match name {
                    None | Some("default") => "tokenizer.chat_template".to_owned(),
                    Some(name) => format!("tokenizer.chat_template.{name}"),
                };
                Ok(gguf.str(&key).map(str::to_owned))
            }
            Place::Json(_) => Ok(None),
            Place::Dir(dir) => {
                let file = match name {
                    None | Some("default") => dir.join("chat_template.jinja"),
                    Some(name) if name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c)) => {
                        dir.join("additional_chat_templates").join(format!("{name}.jinja"))
                    }
                    Some(name) => return Err(Error::at("chat template", format!("{name:?} is not a name"))),
                };
                if let Some(text) = read_text(&file, MAX_TEMPLATE)? {
                    return Ok(Some(text));
                }
                if let Some(text) = self.config.as_ref().and_then(|c| named_template(c, name)) {
                    return Ok(Some(text));
                }
                // Vision-language checkpoints may store it in `chat_template.json`.
                let apart = read_json(&dir.join("chat_template.json"))?;
                Ok(apart.and_then(|c| named_template(&c, name)))
            }
        }
    }

    /// Compiles the named or default chat template. Fails if the model has none.
    pub fn template(&self, name: Option<&str>) -> Result<ChatTemplate> {
        let source = self
            .template_source(name)?
            .ok_or_else(|| Error::at(self.path().display(), "has no chat template"))?;
        ChatTemplate::new(&source).map_err(|e| Error::from(e).in_file(self.path()))
    }

    /// The text of a special token by config key (`bos_token`, `eos_token`, …).
    pub fn special_token(&self, name: &str) -> Option<String> {
        if let Place::Gguf(gguf) = &self.place {
            let key = name.strip_suffix("_token")?;
            let key = if key == "pad" {
                "padding"
            } else if key == "unk" {
                "unknown"
            } else {
                key
            };
            let id = gguf.u64(&format!("tokenizer.ggml.{key}_token_id"))?;
            let token = gguf.array("tokenizer.ggml.tokens")?.strings().nth(usize::try_from(id).ok()?)?;
            return token.ok().map(str::to_owned);
        }
        [&self.config, &self.special_map].into_iter().flatten().find_map(|json| match json.get(name)? {
            Json::String(text) => Some(text.clone()),
            object => object.get("content").and_then(Json::as_str).map(str::to_owned),
        })
    }

    /// Special tokens as template variables.
    pub fn template_variables(&self) -> Map<String, Json> {
        let names =
            ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];
        let pair = |name: &str| self.special_token(name).map(|text| (name.to_owned(), Json::String(text)));
        names.into_iter().filter_map(pair).collect()
    }

    fn path(&self) -> &Path {
        match &self.place {
            Place::Dir(path) | Place::Json(path) => path,
            Place::Gguf(gguf) => gguf.path(),
        }
    }
}

/// `chat_template` of `tokenizer_config.json`: one text, or a list of named templates.
fn named_template(config: &Json, name: Option<&str>) -> Option<String> {
    match config.get("chat_template")? {
        Json::String(text) => Some(text.clone()).filter(|_| matches!(name, None | Some("default"))),
        Json::Array(list) => {
            let wanted = name.unwrap_or("default");
            let found = list.iter().find(|t| t.get("name").and_then(Json::as_str) == Some(wanted))?;
            found.get("template").and_then(Json::as_str).map(str::to_owned)
        }
        _ => None,
    }
}
