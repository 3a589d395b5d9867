//! Maps the tensor names of base-model checkpoints to the canonical names that programs use.
//!
//! Programs name layers `model.layers.N.…`. Checkpoints of base models lack the prefix `model.`.
//! Checkpoints of the BERT family have the prefix `bert.` or `roberta.`, and name layers
//! `encoder.layer.N.…`. The canonical names of a classification head are `classifier.dense`,
//! `classifier.norm` and `classifier.out_proj`.

/// Prefixes of the tensor names of a base model that was saved without its own prefix.
const BASE_MODEL_PREFIXES: [&str; 7] =
    ["embeddings.", "encoder.layer.", "layers.", "embed_tokens.", "norm.", "final_norm.", "pooler."];
/// A buffer that older versions of Transformers store.
const STORED_BUFFER: &str = "embeddings.position_ids";
/// Stored and canonical name prefixes of a classification head (BERT's pooler, ModernBERT's head).
const HEAD_RENAMES: [(&str, &str); 3] = [
    ("model.pooler.dense.", "classifier.dense."),
    ("head.dense.", "classifier.dense."),
    ("head.norm.", "classifier.norm."),
];

/// The canonical name of the tensor `name` in a checkpoint of the model class `class`. `None` if
/// the program does not read it: stored buffers, and the pooler of an embedding model.
pub fn canonical_name(class: &str, name: &str) -> Option<String> {
    let inner = ["bert.", "roberta."].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    if inner == STORED_BUFFER {
        return None;
    }
    let is_classifier = class.ends_with("ForSequenceClassification");
    let mut name = match BASE_MODEL_PREFIXES.iter().find(|part| inner.starts_with(**part)) {
        Some(_) => format!("model.{}", inner.replacen("encoder.layer.", "layers.", 1)),
        None => inner.to_owned(),
    };
    if !is_classifier {
        return (!name.starts_with("model.pooler.")).then_some(name);
    }
    for (stored, canonical) in HEAD_RENAMES {
        if let Some(rest) = name.strip_prefix(stored) {
            return Some(format!("{canonical}{rest}"));
        }
    }
    if let Some(suffix @ ("weight" | "bias")) = name.strip_prefix("classifier.") {
        name = format!("classifier.out_proj.{suffix}");
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::canonical_name;

    #[test]
    fn tensors_of_base_models_and_heads_get_canonical_names() {
        for (class, name, canonical) in [
            ("BertModel", "encoder.layer.0.output.dense.weight", "model.layers.0.output.dense.weight"),
            ("XLMRobertaModel", "embeddings.LayerNorm.bias", "model.embeddings.LayerNorm.bias"),
            ("Qwen3ForCausalLM", "layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"),
            ("Qwen3ForCausalLM", "model.norm.weight", "model.norm.weight"),
            ("Qwen3ForCausalLM", "lm_head.weight", "lm_head.weight"),
            ("BertForSequenceClassification", "bert.pooler.dense.bias", "classifier.dense.bias"),
            ("BertForSequenceClassification", "classifier.weight", "classifier.out_proj.weight"),
            ("XLMRobertaForSequenceClassification", "classifier.dense.weight", "classifier.dense.weight"),
            ("ModernBertForSequenceClassification", "head.norm.weight", "classifier.norm.weight"),
            ("ModernBertForSequenceClassification", "model.final_norm.weight", "model.final_norm.weight"),
        ] {
            assert_eq!(canonical_name(class, name).as_deref(), Some(canonical), "{class} {name}");
        }
        for unread in ["pooler.dense.weight", "bert.pooler.dense.bias", "embeddings.position_ids"] {
            assert_eq!(canonical_name("BertModel", unread), None);
        }
    }
}
