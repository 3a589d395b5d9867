//! Canonical names of tensors, for classes whose checkpoints name the base model's differently.
//!
//! Programs name layers `model.layers.N.…`. Checkpoints of base models lack the prefix `model.`; those
//! of BERT's family have `bert.` or `roberta.`, and `encoder.layer.N.…`. Classification heads become
//! `classifier.dense`, `classifier.norm` and `classifier.out_proj`.

/// First parts of a base model's tensor names.
const OF_BASE: [&str; 7] =
    ["embeddings.", "encoder.layer.", "layers.", "embed_tokens.", "norm.", "final_norm.", "pooler."];
/// Buffers that checkpoints of older versions store.
const BUFFERS: [&str; 1] = ["embeddings.position_ids"];
/// What the projection behind the first token is called in a head: BERT's pooler, ModernBERT's head.
const HEADS: [(&str, &str); 3] = [
    ("model.pooler.dense.", "classifier.dense."),
    ("head.dense.", "classifier.dense."),
    ("head.norm.", "classifier.norm."),
];

/// The canonical name of a tensor of a checkpoint of this class, or `None` for one that the class does
/// not read: stored buffers, and the pooler of an embedding model.
pub fn canonical_name(class: &str, name: &str) -> Option<String> {
    let inner = ["bert.", "roberta."].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    if BUFFERS.contains(&inner) {
        return None;
    }
    let is_classifier = class.ends_with("ForSequenceClassification");
    let mut name = match OF_BASE.iter().find(|part| inner.starts_with(**part)) {
        Some(_) => format!("model.{}", inner.replacen("encoder.layer.", "layers.", 1)),
        None => inner.to_owned(),
    };
    if !is_classifier {
        return (!name.starts_with("model.pooler.")).then_some(name);
    }
    for (hub, canonical) in HEADS {
        if let Some(rest) = name.strip_prefix(hub) {
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
    fn base_models_and_heads_have_one_spelling() {
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
