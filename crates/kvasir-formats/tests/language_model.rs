//! Vision-language checkpoints: the language model opens as a text-only model, under text-only
//! names.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_formats::{Checkpoint, TextFiles};
use kvasir_program::{Model, ProgramError, Source};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value as Json, json};
use std::path::PathBuf;

fn text_config() -> Json {
    json!({
        "architectures": ["MistralForCausalLM"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64,
        "rope_theta": 10000.0, "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 24})
}

/// Writes a multimodal checkpoint with tensor names mapped by `joined`, plus the tensors in
/// `beside`.
fn directory(test: &str, joined: impl Fn(&str) -> String, beside: &[&str]) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("kvasir-joined-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut text = text_config();
    text.as_object_mut().unwrap().remove("architectures");
    let config = json!({
        "architectures": ["Mistral3ForConditionalGeneration"], "text_config": text, "vision_config": {"hidden_size": 8}});
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let model = Model::build(&Source::of_config(text_config())).unwrap();
    let zeros = vec![0; 1 << 16];
    let own = model.target.weights.iter().map(|w| (joined(&w.name), w.shape.clone()));
    let tensors = own.chain(beside.iter().map(|name| ((*name).to_owned(), vec![3])));
    let views = tensors.map(|(name, shape)| {
        let bytes = &zeros[..shape.iter().product::<usize>() * 4];
        (name, TensorView::new(Dtype::F32, shape, bytes).unwrap())
    });
    let file = safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap();
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
    dir
}

#[test]
fn both_multimodal_layouts_yield_the_text_model() {
    let old = |name: &str| format!("language_model.{name}");
    let new = |name: &str| name.replacen("model.", "model.language_model.", 1);
    let dirs = [
        directory("old", old, &["vision_tower.a.weight", "multi_modal_projector.norm.weight"]),
        directory("new", new, &["model.vision_tower.a.weight", "model.multi_modal_projector.norm.weight"]),
    ];
    for dir in dirs {
        let checkpoint = Checkpoint::open(&dir).unwrap();
        assert_eq!(checkpoint.config(), &text_config());
        let built = Model::build(&checkpoint.source()).unwrap();
        assert_eq!(built.target.weights.len(), checkpoint.tensors().count());
        assert_eq!(checkpoint.left_out(), 2);
        std::fs::write(dir.join("chat_template.json"), r#"{"chat_template": "{{ 1 }}"}"#).unwrap();
        let template = TextFiles::open(&dir).unwrap().template_source(None).unwrap();
        assert_eq!(template.as_deref(), Some("{{ 1 }}"));
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn unknown_multimodal_models_are_refused() {
    let dir = directory("unknown", |name| format!("language_model.{name}"), &["audio_tower.weight"]);
    let error = Model::build(&Checkpoint::open(&dir).unwrap().source()).unwrap_err();
    assert!(
        matches!(&error, ProgramError::Unused { name, count: 1 } if name == "audio_tower.weight"),
        "{error}"
    );
    std::fs::remove_dir_all(dir).unwrap();
    let dir = directory("twice", |name| format!("language_model.{name}"), &["lm_head.weight"]);
    let error = Checkpoint::open(&dir).unwrap_err();
    assert!(error.to_string().contains("lm_head.weight: occurs under two names"), "{error}");
    std::fs::remove_dir_all(dir).unwrap();
}
