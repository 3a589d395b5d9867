//! The table of architectures: names are unique, unknown ones lead to the nearest known one, and
//! the documentation lists all.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_program::{Architecture, Model, Source};
use serde_json::{Value as Json, json};

/// The table of `docs/reference/models.md`.
fn table() -> String {
    let mut table =
        String::from("| class | `model_type` | GGUF | models | specifics |\n|---|---|---|---|---|\n");
    for architecture in Architecture::all() {
        let list = |names: Vec<&str>| {
            let mut all: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            all.dedup();
            all.join(", ")
        };
        let classes = list(architecture.classes.iter().map(|class| class.name).collect());
        let types = list(architecture.classes.iter().map(|class| class.model_type).collect());
        let gguf = list(architecture.gguf.names.to_vec());
        let (models, specifics) = (architecture.models, architecture.specifics);
        table.push_str(&format!("| {classes} | {types} | {gguf} | {models} | {specifics} |\n"));
    }
    table
}

#[test]
fn the_documentation_lists_every_architecture() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/models.md");
    let text = std::fs::read_to_string(page).unwrap();
    assert!(text.contains(&table()), "docs/reference/models.md must contain this table:\n\n{}", table());
}

#[test]
fn classes_of_text_models_are_unique() {
    let classes = || Architecture::all().flat_map(|known| known.classes);
    let mut names: Vec<&str> =
        classes().filter(|class| class.text_of.is_none()).map(|class| class.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|two| two[0] != two[1]), "{names:?}");
    // Several language models may share a multimodal class; the type of the text config tells them
    // apart.
    let mut joined: Vec<_> = classes()
        .filter(|class| class.text_of.is_some())
        .map(|class| (class.name, class.model_type))
        .collect();
    joined.sort_unstable();
    assert!(joined.windows(2).all(|two| two[0] != two[1]), "{joined:?}");
    for architecture in Architecture::all() {
        assert!(architecture.classes[0].text_of.is_none(), "{}", architecture.name());
        let written = architecture.gguf.written_name(&json!({}));
        assert!(architecture.gguf.names.contains(&written), "{written}");
        let of = |config: Json| Architecture::of(&config).unwrap().name();
        assert_eq!(of(json!({"architectures": [architecture.name()]})), architecture.name());
        assert_eq!(of(json!({"model_type": architecture.model_type()})), architecture.name());
    }
}

#[test]
fn unknown_classes_name_the_nearest_known_one() {
    let error = |config: Json| Model::build(&Source::of_config(config)).unwrap_err().to_string();
    for (config, expected) in [
        (
            json!({"architectures": ["Qwen3_7ForCausalLM"]}),
            "\"Qwen3_7ForCausalLM\" is not known; the nearest known one is \"Qwen3ForCausalLM\"",
        ),
        (json!({"model_type": "smollm4"}), "\"smollm4\" is not known; the nearest known one is \"smollm3\""),
        (json!({"architectures": []}), "architectures names none"),
    ] {
        let found = error(config);
        assert!(found.contains(expected), "{found}");
    }
}
